"""Machines of a file that cannot join under its policies, for ``nodeattest policy check``. Pure.

Promises: says only what holds whatever the clusters look like, with expected, got and remedy; what a document does not
say is taken as absent. Out of scope: what a Cluster's topology makes of its ClusterClass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.renderer import ATTESTOR_ANNOTATION
from nodeattest_controller.model.identity_rules import POOL_REMEDY
from nodeattest_controller.model.infrastructure_kinds import provider_of_kind
from nodeattest_controller.model.machine_view import (
    CLUSTER_LABEL,
    ContractReference,
    bootstrap_config_ref,
    cluster_of,
    control_plane_ref,
    infrastructure_ref,
    instances_have_machines,
)
from nodeattest_controller.model.policy import Policy, parse_attestation_policy, selects
from nodeattest_parsing.objects import key_of, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.platform import OFFLINE, make_signer, provable_names

_CLUSTER_GROUP: Final = "cluster.x-k8s.io"
_MACHINES: Final = ("Machine", "MachineSet", "MachineDeployment", "MachinePool")


def refused(documents: Sequence[JsonObject], policies: Sequence[JsonObject]) -> Iterator[str]:
    """Yield which objects of a file make machines that cannot join, one line each; ``policies`` are valid."""
    by_name = {(text(one, "kind"), text(one, "metadata", "name")): one for one in documents}
    for document in documents:
        if _is(document, "MachinePool"):
            yield from _pool(document, by_name, policies)
    yield from _other_providers(documents, by_name, policies)


def beside(policy: JsonObject, other: JsonObject) -> bool:
    """Return whether both are in one namespace; a document that names none is applied to whichever is chosen."""
    places = {text(policy, "metadata", "namespace"), text(other, "metadata", "namespace")} - {""}
    return len(places) <= 1


def cluster_with(config: JsonObject, documents: Sequence[JsonObject]) -> JsonObject:
    """Return the Cluster that a configuration belongs to, by its label or by references to it; empty without one."""
    documents = [one for one in documents if beside(one, config)]
    names = {text(config, "metadata", "labels", CLUSTER_LABEL)}
    for one in documents:
        reference = _bootstrap_ref(one)
        if reference and (reference.kind, reference.name) == (text(config, "kind"), text(config, "metadata", "name")):
            names.add(text(one, "metadata", "name") if _is(one, "Cluster") else cluster_of(one))
    clusters = {text(one, "metadata", "name"): one for one in documents if _is(one, "Cluster")}
    return next((clusters[name] for name in sorted(names - {""}) if name in clusters), JsonObject())


def _pool(
    pool: JsonObject, by_name: Mapping[tuple[str, str], JsonObject], policies: Sequence[JsonObject]
) -> Iterator[str]:
    """Refuse a MachinePool whose instances get a node name neither by Machines nor by a proof."""
    reference = infrastructure_ref(mapping(pool, "spec", "template"))
    infra = by_name.get((reference.kind, reference.name), {}) if reference else {}
    if instances_have_machines(infra):
        return
    cluster = by_name.get(("Cluster", cluster_of(pool)), {})
    configured = bootstrap_config_ref(pool)
    config = by_name.get((configured.kind, configured.name), {}) if configured else {}
    for policy in _enforced(pool, cluster, policies):
        chosen = [text(one, "metadata", "annotations", ATTESTOR_ANNOTATION) for one in (config, cluster)]
        named = next((ProviderName(name) for name in chosen if name), None)
        attestors = policy.attestors & {named} if named else policy.attestors
        if attestors and not any(_proves_names(provider, policy) for provider in attestors):
            yield (
                f"MachinePool {key_of(pool)}: expected instances that have Machines, or whose provider proves a node "
                f"name; got neither by policy {policy.name} ({', '.join(sorted(attestors))}) and no infrastructure "
                f"object with status.infrastructureMachineKind in this file; {POOL_REMEDY}"
            )


def _other_providers(
    documents: Sequence[JsonObject], by_name: Mapping[tuple[str, str], JsonObject], policies: Sequence[JsonObject]
) -> Iterator[str]:
    """Refuse what bootstrap providers make whose kubelets cannot attest: each reference once, else its target."""
    referred: set[tuple[str, str]] = set()
    found: list[tuple[JsonObject, ContractReference, JsonObject]] = []
    for document in documents:
        reference = _bootstrap_ref(document)
        if reference is not None:
            referred.add((reference.kind, reference.name))
            named = document if _is(document, "Cluster") else by_name.get(("Cluster", cluster_of(document)), {})
            found.append((document, reference, named))
    for document in documents:
        group, kind, name = _group(document), text(document, "kind"), text(document, "metadata", "name")
        if (kind, name) not in referred:
            owner = text(document, "metadata", "labels", CLUSTER_LABEL)
            found.append((document, ContractReference(group, kind, name), by_name.get(("Cluster", owner), {})))
    for document, reference, cluster in found:
        provider = provider_of_kind(reference.group, reference.kind)
        if provider is None:
            continue
        for policy in _enforced(document, cluster, policies):
            yield (
                f"{text(document, 'kind')} {key_of(document)}: expected machines of the kubeadm bootstrap provider in "
                f"a cluster of policy {policy.name}; got {reference.kind}, {provider.name}: {provider.issuance}; leave "
                "its Cluster out of the policy (clusterSelector), or make its machines by kubeadm "
                "(docs/bootstrap-config.md#other-bootstrap-providers)"
            )


def _bootstrap_ref(document: JsonObject) -> ContractReference | None:
    """Read what makes the machines of an object: a Cluster's control plane, or a bootstrap configuration."""
    if _is(document, "Cluster"):
        return control_plane_ref(document)
    return bootstrap_config_ref(document) if any(_is(document, kind) for kind in _MACHINES) else None


def _enforced(owner: JsonObject, cluster: JsonObject, policies: Sequence[JsonObject]) -> Iterator[Policy]:
    """Yield the policies that enforce and rule an object's cluster for certain: one not in the file may be any."""
    for policy in policies:
        selected = selects(policy, cluster) if cluster else not mapping(policy, "spec", "clusterSelector")
        if selected and beside(policy, owner):
            parsed = parse_attestation_policy(policy)
            if parsed.enforce:
                yield parsed


def _proves_names(provider: ProviderName, policy: Policy) -> bool:
    """Tell whether a provider could prove a name; one that is not installed here may."""
    try:
        names = provable_names(make_signer(provider, OFFLINE), policy.sections)
    except Denied:
        return True
    return names is None or bool(names)


def _is(document: JsonObject, kind: str) -> bool:
    return (_group(document), text(document, "kind")) == (_CLUSTER_GROUP, kind)


def _group(document: JsonObject) -> str:
    return text(document, "apiVersion").partition("/")[0]
