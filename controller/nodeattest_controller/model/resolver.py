"""Which Machine a request belongs to, and what the management cluster expects of it, each with its source. Pure.

bootstrap token -> KubeadmConfig -> Machine -> infrastructure machine -> host object. The token finds the Machine of a
first join; the provider ID finds that of a renewal, an instance of a MachinePool, and a machine whose token no
configuration names. Sources that disagree are denied, and both are named. Source: docs/identity-rules.md, rule 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.infrastructure_kinds import InfrastructureKind, ObjectKey, Objects
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_parsing.objects import mapping, text, text_map
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, ProviderID
from nodeattest_providers.verifier_interface import NodeRequest

_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
UNCONFIRMED_LIFETIME: Final = 24 * 3600
"""Seconds that a certificate lasts at most while the Machine itself has no provider ID."""


@dataclass(frozen=True, slots=True)
class ExpectedProviderID:
    """The provider ID that a Machine has or will have."""

    value: ProviderID
    source: str
    """Such as ``Machine spec.providerID``."""
    is_prefix: bool = False
    """Whether the first request chooses what follows."""

    def matches(self, provider_id: str) -> bool:
        """Return whether a provider ID is this one; a free suffix is one DNS label."""
        if not self.is_prefix:
            return provider_id == self.value
        suffix = provider_id.removeprefix(self.value)
        return provider_id.startswith(self.value) and _DNS_LABEL.fullmatch(suffix) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Infrastructure:
    """A Machine's infrastructure machine and host object, as far as they are there and may be used."""

    kind: InfrastructureKind
    objects: Objects
    """``machine``, ``infra`` and ``host``; the host only where it names the infrastructure machine, too."""
    host_counts: bool = False
    """Whether the policy takes node names and endorsement keys from the host object."""
    keys_of_several_hosts: frozenset[str] = frozenset()
    """Endorsement keys that more than one host object has."""

    @property
    def infra(self) -> JsonObject:
        return self.objects.get("infra", {})

    @property
    def host_key(self) -> ObjectKey | None:
        host, meta = self.kind.host, mapping(self.objects.get("host", {}), "metadata")
        return ObjectKey(host.group, host.kind, text(meta, "namespace"), text(meta, "name")) if host and meta else None


def find_machine(request: NodeRequest, candidates: Sequence[MachineView]) -> MachineView:
    """Rule 1: the provider ID names exactly one Machine of this cluster, alive and ready."""
    if not request.csr.provider_id:
        raise Unavailable(
            Reason.MACHINE_NOT_FOUND,
            "the request has no provider ID, and no one Machine's bootstrap configuration names its token",
            remedy="give the node its provider ID (--provider-id), as an instance of a MachinePool always needs, or "
            "let the Machine's KubeadmConfig name its token",
        )
    if not candidates:
        detail = f"no Machine of this cluster has provider ID {request.csr.provider_id!r}"
        remedy = "check the provider ID that the node was given against Machine.spec.providerID"
        raise Unavailable(Reason.MACHINE_NOT_FOUND, detail, remedy=remedy)
    expected = "one Machine with this provider ID"
    return one_ready_machine(candidates, expected=expected, remedy="give each Machine its own provider ID")


def one_ready_machine(candidates: Sequence[MachineView], *, expected: str, remedy: str) -> MachineView:
    """Return the only candidate, if it is ready. There is at least one. Raises ``Denied`` or ``Unavailable``."""
    if len(candidates) > 1:
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected=expected,
            got=", ".join(sorted(f"{member.kind} {member.name}" for member in candidates)),
            remedy=remedy,
        )
    check_machine_ready(candidates[0])
    return candidates[0]


def check_machine_ready(member: MachineView) -> None:
    """Rule 1: the Machine stays, is not paused, can be read whole, and its bootstrap data is ready."""
    if member.deleting:
        raise Denied(
            Reason.MACHINE_DELETING,
            expected="a Machine that stays",
            got=f"{member.kind} {member.name} is being deleted",
            remedy="none: the machine is on its way out",
        )
    if member.paused:
        raise not_ready(f"{member.kind} {member.name} or its cluster is paused", "resume it")
    if member.flaw:
        raise Unavailable(
            Reason.RECORD_INVALID if member.kind == "MachineRecord" else Reason.MACHINE_TOO_LARGE,
            f"{member.kind} {member.name}: {member.flaw}",
            remedy=f"correct the {member.kind}; the request continues by itself",
        )
    if not member.bootstrap_ready and not member.node_ref_name:  # a machine with a node has had its data
        detail = f"the bootstrap data of {member.kind} {member.name} is not ready"
        raise not_ready(detail, "wait for BootstrapConfigReady")


def not_ready(detail: str, remedy: str) -> Unavailable:
    return Unavailable(Reason.MACHINE_NOT_READY, detail, remedy=remedy)


def expected_provider_id(machine: MachineView, infrastructure: Infrastructure | None) -> ExpectedProviderID | None:
    """Return a Machine's provider ID by the first source that has one; raises Denied where 2 and 3, or 3 and 4 differ.

    1. The object itself; 2. the record of the machine that joined; 3. the infrastructure machine; 4. the expressions
    for its kind.
    """
    if machine.provider_id:  # 1, 2
        expected = ExpectedProviderID(machine.provider_id, machine.provider_id_source)
        stated = text(infrastructure.infra, "spec", "providerID") if infrastructure is not None else ""
        if stated and not machine.is_confirmed and stated != expected.value:
            kind = machine.infra.kind if machine.infra is not None else ""
            raise provider_id_changed(machine, expected.value, f"{stated} ({kind} spec.providerID)")
        return expected
    if infrastructure is None or machine.infra is None:
        return None
    stated = text(infrastructure.infra, "spec", "providerID")  # 3
    derived = _derived(machine.infra.kind, infrastructure)  # 4
    if not stated:
        return derived
    expected = ExpectedProviderID(ProviderID(stated), f"{machine.infra.kind} spec.providerID")
    if derived is not None and not derived.matches(stated):
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected=f"sources of a provider ID that agree, such as {derived.value} ({derived.source})",
            got=f"{expected.value} ({expected.source})",
            remedy="correct the infrastructure machine, or the expression in the policy's "
            "spec.infrastructure.providerIDs",
        )
    return expected


def _derived(kind: str, infrastructure: Infrastructure) -> ExpectedProviderID | None:
    for expression in infrastructure.kind.provider_ids:
        value = expression.identifier(infrastructure.objects)
        if value:
            source = f"{kind} expression {expression.source}"
            return ExpectedProviderID(ProviderID(value), source, expression.has_free_suffix)
    return None


def identified(machine: MachineView, provider_id: ProviderID, expected: ExpectedProviderID | None) -> MachineView:
    if machine.provider_id or expected is None:
        return machine
    prefix = expected.value if expected.is_prefix else ""
    return machine.with_provider_id(provider_id, expected.source, prefix=prefix)


def record_of_other_id(machine: MachineView, records: Sequence[Attestation]) -> Attestation | None:
    """Return the record of a Machine that joined with another provider ID; ``records`` are those that it owns."""
    if machine.kind != "Machine":  # the instances of a pool share an owner
        return None
    return next((one for one in records if one.has_joined and one.provider_id != machine.provider_id), None)


def provider_id_changed(machine: MachineView, recorded: str, got: str) -> Denied:
    expected = f"{recorded}, with which {machine.kind} {machine.name} joined"
    remedy = "correct what is wrong, the infrastructure objects or the policy's expression, and delete the Machine"
    return Denied(Reason.PROVIDER_ID_CHANGED, expected=expected, got=got, remedy=remedy)


def host_names(infrastructure: Infrastructure | None) -> Mapping[str, Sequence[str]]:
    """Return the node names of the host object, by source; none where the policy does not take them."""
    if infrastructure is None or not infrastructure.host_counts or infrastructure.kind.host is None:
        return {}
    names = [name.value(infrastructure.objects) for name in infrastructure.kind.host.node_names]
    return {infrastructure.kind.host.kind: tuple(name for name in names if name)}


def platform_endorsement_keys(
    machine: MachineView, infrastructure: Infrastructure | None, *, has_joined: bool
) -> Mapping[str, str]:
    """Return the fingerprints that the platform's objects give, by source; raises Denied for one of several hosts.

    Not if the machine has joined: who writes another host object must not end this node's renewals.
    """
    if infrastructure is None:
        return machine.endorsement_keys
    kinds = {"infra": machine.infra.kind if machine.infra is not None else "infra"}
    if infrastructure.host_counts and infrastructure.kind.host is not None:
        kinds["host"] = infrastructure.kind.host.kind
    found: dict[str, str] = {}
    for root, kind in kinds.items():
        annotations = text_map(infrastructure.objects.get(root, {}), "metadata", "annotations")
        if ANNOTATION_TPM_ENDORSEMENT_KEY in annotations:
            found[f"{kind} annotation {ANNOTATION_TPM_ENDORSEMENT_KEY}"] = annotations[ANNOTATION_TPM_ENDORSEMENT_KEY]
    shared = infrastructure.keys_of_several_hosts.intersection(found.values())
    if shared and not has_joined:
        raise Denied(
            Reason.ENDORSEMENT_KEY_UNTRUSTED,
            expected="an endorsement key on one host object",
            got=f"{min(shared)}, which several host objects have",
            remedy=f"correct the annotation {ANNOTATION_TPM_ENDORSEMENT_KEY} of the hosts that have another TPM",
        )
    return found or machine.endorsement_keys
