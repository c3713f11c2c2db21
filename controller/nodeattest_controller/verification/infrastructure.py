"""Reads a Machine's infrastructure machine and its host object, as far as they may be used.

An object counts only if it names the Machine, or what names it, in turn. A host object is read only in a namespace that
the policy allows. What cannot be read or does not count yet is waited for: it never opens a weaker source of trust.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from nodeattest_controller.model.infrastructure_kinds import HostReference, InfrastructureKind, Objects, known_kind
from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.policy import InfrastructurePolicy
from nodeattest_controller.model.resolver import Infrastructure
from nodeattest_controller.runtime.references import no_platform
from nodeattest_parsing.objects import strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY


class ObjectReader(Protocol):
    """Where the objects of infrastructure providers are."""

    async def get(self, reference: ContractReference, namespace: str) -> JsonObject: ...

    async def consumers(self, host: HostReference, consumer: str) -> list[JsonObject]:
        """Return the host objects that name an infrastructure machine (``HostReference.names``); raises Unavailable."""
        ...

    async def holders_of_key(self, reference: ContractReference, fingerprint: str) -> list[str]:
        """Return the namespaces of the objects of a kind that have an endorsement key, one each; raises Unavailable."""
        ...


def kind_of(reference: ContractReference, policy: InfrastructurePolicy) -> InfrastructureKind:
    """Return what is known of the kind of an infrastructure machine, by the shipped table and by the policy."""
    known, own = known_kind(reference), policy.provider_ids.get((reference.group, reference.kind))
    return known if own is None else replace(known, provider_ids=(own,))


def may_derive_same(
    reference: ContractReference, derived: ContractReference | None, policy: InfrastructurePolicy
) -> bool:
    """Return whether the expressions of a kind can give a provider ID that another infrastructure machine has.

    ``derived``: that machine, if its own is given by an expression; None: by its spec.
    """
    expressions = kind_of(reference, policy).provider_ids
    is_same_kind = derived is not None and (derived.group, derived.kind) == (reference.group, reference.kind)
    return bool(expressions) and not (is_same_kind and all(one.has_name_of("infra") for one in expressions))


async def read_infrastructure(
    machine: MachineView, policy: InfrastructurePolicy, objects: ObjectReader
) -> Infrastructure | None:
    """Return a Machine's infrastructure machine, with its host object where that is needed; raises Unavailable.

    None where the Machine names no infrastructure machine.
    """
    if machine.infra is None:
        return None
    kind, infra = kind_of(machine.infra, policy), await objects.get(machine.infra, machine.namespace)
    what = f"{machine.infra.kind} {machine.infra.name}"
    counts = kind.host is not None and kind.host.kind in policy.host_objects
    if (counts or not machine.is_confirmed or not machine.provider_id) and not _is_owned(infra, machine):
        raise no_platform(f"{what} does not have Machine {machine.name} as owner")
    about: JsonObject = {
        "metadata": {"name": machine.name, "namespace": machine.namespace},
        "spec": {"clusterName": machine.cluster_name},
    }
    found = {"machine": about, "infra": infra}
    if kind.host is None or not kind.host.expects(found):  # such as a RemoteMachine without a pool
        return Infrastructure(kind=kind, objects=found)
    if not counts and not _needs_host(kind, found, machine):
        key = kind.host.key(found, machine.namespace)
        named: JsonObject = {"metadata": {"namespace": key.namespace, "name": key.name} if key is not None else {}}
        return Infrastructure(kind=kind, objects={**found, "host": named})
    host = await _read_host(kind.host, found, machine, policy, objects)
    if host is None and counts:
        raise no_platform(f"{what} has no {kind.host.kind} in a namespace that counts yet")
    if host is None:
        return Infrastructure(kind=kind, objects=found)
    shared = await _shared_keys(kind.host, host, machine, policy, objects) if counts else frozenset[str]()
    return Infrastructure(kind=kind, objects={**found, "host": host}, host_counts=counts, keys_of_several_hosts=shared)


def _needs_host(kind: InfrastructureKind, objects: Objects, machine: MachineView) -> bool:
    if machine.provider_id or text(objects["infra"], "spec", "providerID"):
        return False
    for expression in kind.provider_ids:
        if expression.reads_host or kind.host is None or kind.host.name is None:
            return not expression.identifier(objects)
    return False


def _is_owned(infra: JsonObject, machine: MachineView) -> bool:
    return machine.uid in strings(infra, "metadata", "owners")


async def _read_host(
    reference: HostReference,
    found: Objects,
    machine: MachineView,
    policy: InfrastructurePolicy,
    objects: ObjectReader,
) -> JsonObject | None:
    """Read the one host object that names the infrastructure machine, in a namespace that counts; None: none yet."""
    counting = {machine.namespace, *policy.host_namespaces}
    if reference.name is None:
        hosts = await objects.consumers(reference, reference.expects(found))
        hosts = [host for host in hosts if text(host, "metadata", "namespace") in counting]
    else:
        key = reference.key(found, machine.namespace)
        if key is not None and key.namespace not in counting:
            raise no_platform(
                f"{key.kind} {key.name} is in namespace {key.namespace}, which is neither the Machine's nor one of "
                "the policy's spec.infrastructure.hostNamespaces"
            )
        wanted = ContractReference(reference.group, reference.kind, key.name) if key is not None else None
        hosts = [await objects.get(wanted, key.namespace)] if wanted is not None and key is not None else []
    if len(hosts) > 1:
        raise no_platform(f"{len(hosts)} {reference.kind} objects name one infrastructure machine")
    if hosts and not reference.is_mutual({**found, "host": hosts[0]}):
        raise no_platform(f"the {reference.kind} does not name the infrastructure machine that names it")
    return hosts[0] if hosts else None


async def _shared_keys(
    reference: HostReference,
    host: JsonObject,
    machine: MachineView,
    policy: InfrastructurePolicy,
    objects: ObjectReader,
) -> frozenset[str]:
    """Return the endorsement key of a host object, where another that may count has it, too."""
    fingerprint = text(host, "metadata", "annotations", ANNOTATION_TPM_ENDORSEMENT_KEY)
    if not fingerprint:
        return frozenset()
    holders = await objects.holders_of_key(ContractReference(reference.group, reference.kind, ""), fingerprint)
    counting = {machine.namespace, *policy.host_namespaces}
    return frozenset({fingerprint} if sum(namespace in counting for namespace in holders) > 1 else ())
