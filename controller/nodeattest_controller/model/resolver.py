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
from nodeattest_controller.model.identity_rules import check_machine_ready, find_machine
from nodeattest_controller.model.infrastructure_kinds import InfrastructureKind, ObjectKey, Objects
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import TokenBinding
from nodeattest_parsing.objects import mapping, text, text_map
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ANNOTATION_PROVIDER_ID, ANNOTATION_TPM_ENDORSEMENT_KEY, ProviderID
from nodeattest_providers.verifier_interface import NodeRequest

_MAX_LISTED: Final = 8
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
        """The infrastructure machine."""
        return self.objects.get("infra", {})

    @property
    def host_key(self) -> ObjectKey | None:
        """Which host object it is; None where there is none."""
        host, meta = self.kind.host, mapping(self.objects.get("host", {}), "metadata")
        return ObjectKey(host.group, host.kind, text(meta, "namespace"), text(meta, "name")) if host and meta else None


def select_machine(
    request: NodeRequest, by_provider_id: Sequence[MachineView], by_token: Sequence[MachineView], binding: TokenBinding
) -> MachineView:
    """Rule 1: the provider ID and the bootstrap token name one Machine of this cluster, and the same.

    ``by_token``: Machines whose bootstrap configuration names the requester's token; none for a renewal.
    """
    provider_id = request.csr.provider_id
    if binding is TokenBinding.OFF and by_provider_id:
        return find_machine(request, by_provider_id)
    if len(by_token) > 1:
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected="a bootstrap token that one Machine's bootstrap configuration names",
            got=", ".join(sorted(f"{one.kind} {one.name}" for one in by_token[:_MAX_LISTED])),
            remedy="let the bootstrap provider make a token for each Machine: name none in the template",
        )
    if not by_token:
        return find_machine(request, by_provider_id)
    machine = by_token[0]
    others = [one for one in by_provider_id if one.uid != machine.uid]
    if others and machine.provider_id == provider_id:
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected="one Machine with this provider ID",
            got=", ".join(f"{one.kind} {one.name} ({one.provider_id_source})" for one in (machine, others[0])),
            remedy="delete the Machine that has it wrongly, or correct its infrastructure objects",
        )
    if others:
        raise Denied(
            Reason.TOKEN_NOT_THIS_MACHINES,
            expected=f"the provider ID of {machine.kind} {machine.name}, whose bootstrap configuration names the token",
            got=f"{provider_id!r}, the provider ID of {others[0].kind} {others[0].name}",
            remedy="let each machine use its own bootstrap data",
        )
    check_machine_ready(machine)
    return machine


def expected_provider_id(machine: MachineView, infrastructure: Infrastructure | None) -> ExpectedProviderID | None:
    """Return a Machine's provider ID by the first source that has one; None while none does.

    1. The object itself, which also a MachineRecord and a pool have; 2. the record of the machine that joined; 3. the
    infrastructure machine; 4. the expressions for its kind. Raises Denied where the second and the third differ, or the
    third and the fourth.
    """
    if machine.provider_id:  # 1, 2
        expected = ExpectedProviderID(machine.provider_id, machine.provider_id_source)
        stated = text(infrastructure.infra, "spec", "providerID") if infrastructure is not None else ""
        if stated and not machine.is_confirmed and stated != expected.value:
            kind = machine.infra.kind if machine.infra is not None else ""
            raise _changed(machine, expected.value, f"{stated} ({kind} spec.providerID)")
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
    """Return the provider ID of the first expression that gives one."""
    for expression in infrastructure.kind.provider_ids:
        value = expression.identifier(infrastructure.objects)
        if value:
            source = f"{kind} expression {expression.source}"
            return ExpectedProviderID(ProviderID(value), source, expression.has_free_suffix)
    return None


def check_provider_id(request: NodeRequest, machine: MachineView, expected: ExpectedProviderID | None) -> MachineView:
    """Rule 1: the request has the Machine's provider ID; returns the Machine with it.

    A request without one is told which it is. Raises Denied, or Unavailable while no source has one.
    """
    if expected is None:
        raise Unavailable(
            Reason.MACHINE_NOT_FOUND,
            f"{machine.kind} {machine.name} has no provider ID yet: not in spec.providerID, not in its infrastructure "
            "machine, and no expression for that kind gives one",
            remedy="wait until the infrastructure provider sets it, or add an expression for the kind to the policy's "
            "spec.infrastructure.providerIDs",
        )
    requested = request.csr.provider_id
    if not requested:
        raise _required(expected, machine)
    if not expected.matches(requested):
        raise Denied(
            Reason.PROVIDER_ID_MISMATCH,
            expected=f"{expected.value}{'*' if expected.is_prefix else ''} ({expected.source})",
            got=requested,
            remedy=f"give the node the provider ID of {machine.kind} {machine.name}, or none: then the controller "
            "tells it",
        )
    return identified(machine, requested, expected)


def identified(machine: MachineView, provider_id: ProviderID, expected: ExpectedProviderID | None) -> MachineView:
    """Give a Machine without a provider ID the requested one, by the source that expects one."""
    if machine.provider_id or expected is None:
        return machine
    prefix = expected.value if expected.is_prefix else ""
    return machine.with_provider_id(provider_id, expected.source, prefix=prefix)


def _required(expected: ExpectedProviderID, machine: MachineView) -> Denied:
    what = f"a request with the provider ID of {machine.kind} {machine.name}"
    remedy = "file another request with the provider ID in the annotation; the agent does so by itself"
    if expected.is_prefix:  # kubelet needs the same suffix, and nobody tells it one
        what += f", which begins with {expected.value}"
        remedy = f"give agent and kubelet one provider ID that begins with {expected.value}"
    return Denied(
        Reason.PROVIDER_ID_REQUIRED,
        expected=what,
        got="a request without one",
        remedy=remedy,
        annotations={} if expected.is_prefix else {ANNOTATION_PROVIDER_ID: expected.value},
    )


def check_provider_id_free(machine: MachineView, others: Sequence[str]) -> None:
    """Rule 1: no other object of the cluster has the provider ID that Cluster API has not confirmed yet."""
    if others and not machine.is_confirmed:
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected=f"a provider ID of {machine.kind} {machine.name} alone",
            got=f"{machine.provider_id}, which {', '.join(sorted(others)[:_MAX_LISTED])} has, too",
            remedy="delete the object that has it wrongly",
        )


def record_of_other_id(machine: MachineView, records: Sequence[Attestation]) -> Attestation | None:
    """Return the record of a Machine that joined with another provider ID; ``records`` are those that it owns."""
    if machine.kind != "Machine":  # the instances of a pool share an owner
        return None
    return next((one for one in records if one.has_joined and one.provider_id != machine.provider_id), None)


def check_recorded_provider_id(machine: MachineView, records: Sequence[Attestation]) -> None:
    """Rule 1: a Machine that joined keeps its provider ID. ``records`` are those that it owns."""
    record = record_of_other_id(machine, records)
    if record is not None:
        raise _changed(machine, record.provider_id, f"{machine.provider_id} ({machine.provider_id_source})")


def _changed(machine: MachineView, recorded: str, got: str) -> Denied:
    return Denied(
        Reason.PROVIDER_ID_CHANGED,
        expected=f"{recorded}, with which {machine.kind} {machine.name} joined",
        got=got,
        remedy="correct what is wrong, the infrastructure objects or the policy's expression, and delete the Machine",
    )


def check_record_owner(request: NodeRequest, record: Attestation, owner: MachineView | None) -> None:
    """Rule 1: a node whose Machine has another provider ID by now is refused at once."""
    if request.is_renewal and owner is not None and owner.provider_id != record.provider_id:
        raise _changed(owner, record.provider_id, f"{owner.provider_id} ({owner.provider_id_source})")


def check_renewable(machine: MachineView, *, secure: bool) -> None:
    """Rule 1: no certificate that cannot be renewed is issued for a provider ID that Cluster API has not confirmed."""
    if not secure:
        raise Unavailable(
            Reason.MACHINE_NOT_READY,
            f"{machine.kind} {machine.name} has no spec.providerID; until it has, certificates last "
            f"{UNCONFIRMED_LIFETIME // 3600} hours, and a provider that is not secure renews none",
            remedy="use a secure provider, or wait until Cluster API sets the Machine's spec.providerID",
        )


def host_names(infrastructure: Infrastructure | None) -> Mapping[str, Sequence[str]]:
    """Return the node names of the host object, by source; none where the policy does not take them."""
    if infrastructure is None or not infrastructure.host_counts or infrastructure.kind.host is None:
        return {}
    names = [name.value(infrastructure.objects) for name in infrastructure.kind.host.node_names]
    return {infrastructure.kind.host.kind: tuple(name for name in names if name)}


def platform_endorsement_keys(
    machine: MachineView, infrastructure: Infrastructure | None, *, has_joined: bool
) -> Mapping[str, str]:
    """Return the fingerprints that the platform's objects give, by source.

    Raises Denied for one of several hosts, unless the machine has joined: a fingerprint is public, and who writes
    another host object must not end this node's renewals.
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
