"""What machines join with: the agent in their bootstrap data, refused configurations, and bootstrap tokens' way. Pure.

Only machines that have not joined matter. No Secret is read: neither tokens, nor bootstrap data as it was made of a
KubeadmConfig.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread, WorkloadFacts, readable
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed
from nodeattest_controller.controllers.auto_approval.permissions import bootstrap_groups_of
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.options import RenderingRefused
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import is_rendered
from nodeattest_controller.model.bootstrap_providers import provider_of_kind
from nodeattest_controller.model.machine_view import bootstrap_config_ref, cluster_of
from nodeattest_controller.model.objects import items, mapping, text
from nodeattest_controller.model.token_binding import DELETE_UNNAMED, LOST_TOKEN, named_tokens
from nodeattest_controller.runtime.workload_client import BOOTSTRAP_BINDING
from nodeattest_kube.jsontypes import JsonObject, key_of
from nodeattest_providers.errors import Unavailable

__all__ = ["IDS", "joiners", "look"]

IDS: Final = ("bootstrap-data", "bootstrap-refused", "bootstrap-tokens")
_KUBEADM: Final = ("bootstrap.cluster.x-k8s.io", "KubeadmConfig")
_BOOTSTRAPPER: Final = "system:node-bootstrapper"
_SIGNATURE: Final = "jws-kubeconfig-"


def joiners(facts: HealthFacts) -> list[JsonObject]:
    """Return the Machines and pools of protected clusters that name a bootstrap configuration and have not joined.

    A pool is always about to: its next instance is made of the same configuration.
    """
    machines, attestations = facts.management.machines, facts.management.attestations
    known = readable(attestations)
    joined = {(_cluster_key(one), text(one, "spec", "providerID")) for one in known if items(one, "spec", "issued")}
    protected = {key_of(one) for one in facts.protected()}
    return [
        machine
        for machine in readable(machines)
        if bootstrap_config_ref(machine) is not None
        and _cluster_key(machine) in protected
        and not mapping(machine, "status", "nodeRef")
        and "deletionTimestamp" not in mapping(machine, "metadata")
        and (_cluster_key(machine), text(machine, "spec", "providerID")) not in joined
    ]


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at each protected cluster."""
    waiting = joiners(facts)
    management = facts.management
    known = not any(isinstance(one, Unread) for one in (management.machines, management.attestations))
    for cluster in facts.protected():
        key = key_of(cluster)
        if facts.enforces(key) and known:  # what could not be read is told with the machines
            yield _data(facts, key, [one for one in waiting if _cluster_key(one) == key])
        workload = facts.workloads.get(key)
        if workload is not None and workload.unreached is None:
            yield _tokens(key, workload)
    if not isinstance(management.policies, Unread):
        yield _refused(management.policies)


def _cluster_key(machine: JsonObject) -> str:
    return f"{text(machine, 'metadata', 'namespace')}/{cluster_of(machine)}"


def _data(facts: HealthFacts, key: str, waiting: Sequence[JsonObject]) -> HealthFinding:
    """See that each joiner's configuration starts the agent, and names the token that the machine has."""
    expected = "machines that have not joined yet have the agent in their bootstrap configuration, and their token"
    configs = facts.management.configs
    wrong: list[str] = []
    lost: list[str] = []
    unknown: list[str] = []
    requires_token = facts.requires_named_tokens(key)
    known = {key_of(one): one for one in (configs if isinstance(configs, list | tuple) else ())}
    for machine in waiting:
        reference = bootstrap_config_ref(machine)
        if reference is None:
            continue
        title = f"{text(machine, 'kind')} {text(machine, 'metadata', 'name')}"
        other = provider_of_kind(reference.group, reference.kind)
        config = known.get(f"{text(machine, 'metadata', 'namespace')}/{reference.name}")
        if other is not None:
            wrong.append(f"{title}: {reference.kind} ({other.name}) cannot attest")
        elif (reference.group, reference.kind) != _KUBEADM:
            unknown.append(f"{title}: {reference.kind} is not known here")
        elif isinstance(configs, Unread):
            unknown.append(f"{title}: {configs.why}")
        elif config is None:
            unknown.append(f"{title}: KubeadmConfig {reference.name} is not there")
        elif not _starts_agent(config):
            wrong.append(f"{title}: KubeadmConfig {reference.name} is not rendered")
        elif requires_token and _lost_token(config):
            lost.append(f"{title}: KubeadmConfig {reference.name} {LOST_TOKEN}")
    severity = HealthSeverity.ERROR if wrong or lost else HealthSeverity.UNKNOWN if unknown else HealthSeverity.OK
    remedies = (
        ["nodeattest render, or the webhook (docs/bootstrap-config.md); then make the machines anew"] if wrong else []
    )
    remedies += [f"{DELETE_UNNAMED} (docs/denials.md#the-kubernetes-object)"] if lost else []
    if unknown and not remedies:
        remedies = ["let this user list KubeadmConfigs, which may hold bootstrap tokens"]
    found = "; ".join(filter(None, [listed(wrong), listed(lost), listed(unknown)]))
    return HealthFinding(
        id="bootstrap-data",
        severity=severity,
        expected=expected,
        found=found or f"{len(waiting)} machines are about to join, all with the agent",
        remedy="; ".join(remedies),
        cluster=key,
    )


def _starts_agent(config: JsonObject) -> bool:
    try:
        return is_rendered({**config, "kind": "KubeadmConfig"})
    except RenderingRefused:
        return False


def _lost_token(config: JsonObject) -> bool:
    """Return whether the token of a machine that joins will never be named; ``kubeadm init`` needs none."""
    try:
        return "joinConfiguration" in mapping(config, "spec") and named_tokens(config).token_lost
    except Unavailable:  # it names something else
        return False


def _refused(policies: Sequence[JsonObject]) -> HealthFinding:
    """Report for whom the webhook refuses configurations; the controller has written it into the policies' status."""
    found = [
        f"{text(one, 'kind')} {text(policy, 'metadata', 'namespace')}/{text(one, 'name')}: {text(one, 'reason')}: "
        f"{text(one, 'message')}"
        for policy in policies
        for one in items(policy, "status", "refusedConfigurations")
    ]
    return HealthFinding(
        id="bootstrap-refused",
        severity=HealthSeverity.WARNING if found else HealthSeverity.OK,
        expected="no bootstrap configuration was refused of late",
        found=listed(found) or "none was",
        remedy="the message says what to correct; no Machine is made until then" if found else "",
    )


def _tokens(key: str, workload: WorkloadFacts) -> HealthFinding:
    """See that bootstrap tokens may create requests; how many of them sign cluster-info says that there are some."""
    expected = "bootstrap tokens may create CertificateSigningRequests, and cluster-info is there"
    bindings, info = workload.bindings, workload.cluster_info
    severity, remedy = HealthSeverity.OK, ""
    if isinstance(bindings, Unread):
        severity, found, remedy = HealthSeverity.UNKNOWN, bindings.why, "let this user list ClusterRoleBindings there"
    elif not any(_lets_tokens_ask(one) for one in bindings):
        severity, found = HealthSeverity.ERROR, f"no ClusterRoleBinding gives them {_BOOTSTRAPPER}"
        remedy = (
            f"the controller makes {BOOTSTRAP_BINDING} when it connects: see its log, and apply manifests/workload-rbac"
        )
    else:
        found = "they may"
    if isinstance(info, dict):
        signatures = sum(name.startswith(_SIGNATURE) for name in mapping(info, "data"))
        found += f"; cluster-info is signed by {signatures} tokens"
    elif isinstance(info, Unread):
        found += f"; cluster-info was not read: {info.why}"
    else:
        found += "; no cluster-info: machines need another way to find the cluster"
    return HealthFinding(
        id="bootstrap-tokens", severity=severity, expected=expected, found=found, remedy=remedy, cluster=key
    )


def _lets_tokens_ask(binding: JsonObject) -> bool:
    bound = text(binding, "roleRef", "name") == _BOOTSTRAPPER
    names = (text(subject, "name") for subject in items(binding, "subjects"))
    return bound and (bool(bootstrap_groups_of(binding)) or "system:bootstrappers" in names)
