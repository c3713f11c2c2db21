"""Which node names a machine may have, how strong its claim to each is, and who else has it (identity rule 2). Pure.

Sources are compared in lower case without the final dot, as kubelet writes its name (kubernetes pkg/util/node
GetHostname). The request's name is never normalized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from typing import Final

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.infrastructure_kinds import HostReference, known_kind
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, is_dns_name

POOL_REMEDY: Final = (
    "name each instance's providerID, endorsement key and nodeName in the policy's spec.tpm.endorsementKeys (provider "
    "tpm), attest by aws, azure or gcp, which prove names, or use a MachineDeployment or an infrastructure provider "
    "that makes Machines for the pool's instances"
)
"""What gives a MachinePool's instances names; trust on first use never does."""
_NO_NAME: Final = "a name that the provider proves: an instance of a MachinePool without Machines has none of its own"
_MAX_LISTED: Final = 8
_NAME_ADDRESSES: Final = frozenset({"Hostname", "InternalDNS"})


class NameStrength(IntEnum):
    """How strong a claim to a node name is: a weaker one loses, and two of the same strength exclude each other."""

    ADDRESS = 0
    """An address of type Hostname or InternalDNS, which a guest may have chosen."""
    OBJECT = 1
    """A name of an object in the management cluster, or one that the platform proves."""
    REGISTERED = 2
    """An operator's registration, a nodeRef, or the record of a node that joined."""


@dataclass(frozen=True, slots=True)
class NameClaim:
    """One name that a machine may have."""

    name: str
    strength: NameStrength
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NameSources:
    """What is known of a machine's names beside the Machine."""

    recorded: NodeName | None = None
    registered: NodeName | None = None
    proven: NodeName | None = None
    host: Mapping[str, Sequence[str]] | None = None
    """Names from the host object, by source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameContext:
    """What else claims the requested name."""

    claimants: Sequence[MachineView]
    """Members of the cluster whose own name sources give the requested node name."""
    holders: Sequence[Attestation]
    """Ledgers of the cluster that bound the requested node name to a machine."""
    registered: frozenset[ProviderID] = frozenset()
    """Machines to which the policy gives the requested node name."""
    hosts: Sequence[str] = ()
    """Other host objects that give a node the requested name."""
    short_names: bool = False
    is_alive: Callable[[Attestation], bool] = lambda _attestation: True
    """Whether an attestation record's machine still exists; a record without one is about to be collected."""


def node_names(machine: MachineView, sources: NameSources = NameSources()) -> tuple[NameClaim, ...]:
    """Return what a machine may be called, strongest first; a MachineRecord names its node itself."""
    if machine.given_name is not None:
        return tuple(_claims([machine.given_name], NameStrength.REGISTERED, "MachineRecord spec.nodeName"))
    decisive = (
        (sources.recorded, "MachineAttestation spec.nodeName"),
        (machine.node_ref_name, f"{machine.kind} status.nodeRef"),
        (sources.registered, "NodeAttestationPolicy nodeName"),
    )
    for name, source in decisive:
        if name:
            return tuple(_claims([name], NameStrength.REGISTERED, source))
    found = [*_claims([sources.proven or ""], NameStrength.OBJECT, "the provider's proof"), *_of_objects(machine)]
    for source, names in (sources.host or {}).items():
        found += _claims(names, NameStrength.OBJECT, source)
    for kind, address in machine.addresses:
        if kind in _NAME_ADDRESSES:
            found += _claims([address], NameStrength.ADDRESS, f"{machine.kind} status.addresses")
    return tuple({claim.name: claim for claim in reversed(found)}.values())[::-1]


def claim_to(claims: Iterable[NameClaim], name: str, *, short_names: bool = False) -> NameClaim | None:
    """Return the strongest claim to a name; ``short_names``: or to one whose first label it is."""
    matching = [claim for claim in claims if is_named(claim.name, name, short=short_names)]
    return max(matching, key=lambda claim: claim.strength, default=None)


def is_named(own: str, name: str, *, short: bool) -> bool:
    return own == name or (short and "." not in name and own.partition(".")[0] == name)


def has_name(member: MachineView, node_name: str, holders: Sequence[Attestation]) -> bool:
    """Rule 2: whether a node's name is a member's by nodeRef, record or ledger, of which ``holders`` bound the name."""
    return node_name in {member.node_ref_name, member.given_name} or any(
        one.provider_id == member.provider_id and one.has_joined for one in holders
    )


def check_node_name(name: NodeName, machine: MachineView, around: NameContext, sources: NameSources) -> None:
    """Rule 2: the requested name is this Machine's, and no other Machine's too.

    Of two claims the stronger one counts: addresses, which a guest can invent, take no name from a Machine.
    """
    own = check_claim(name, node_names(machine, sources), short_names=around.short_names)
    if around.registered - {machine.provider_id}:
        remedy = "give this host another name, or correct the nodeName in the policy (spec.tpm.endorsementKeys)"
        raise name_taken("the policy gives this node name to another machine", remedy)
    others = list(around.hosts) if own.strength is not NameStrength.REGISTERED else []
    for other in around.claimants:
        if other.uid != machine.uid and not other.deleting:
            claim = claim_to(node_names(other), name, short_names=around.short_names)
            if claim is not None and claim.strength >= own.strength:
                others.append(other.name)
    if others:
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected="one Machine that claims this node name",
            got=", ".join(sorted({*others, machine.name})),
            remedy="give each Machine its own host name",
        )


def check_claim(name: str, claims: Sequence[NameClaim], *, short_names: bool = False) -> NameClaim:
    """Rule 2: the name is one of the machine's; returns the claim to it."""
    claim = claim_to(claims, name, short_names=short_names)
    if claim is None:
        raise Denied(
            Reason.NODE_NAME_MISMATCH,
            expected=" or ".join(f"{one.name} ({one.source})" for one in claims[:_MAX_LISTED]) or _NO_NAME,
            got=name,
            remedy="let the node use its own Machine's name" if claims else POOL_REMEDY,
        )
    return claim


def name_taken(got: str, remedy: str) -> Denied:
    return Denied(Reason.NODE_NAME_TAKEN, expected="a free node name, or this Machine's own", got=got, remedy=remedy)


def names_of_host(host: JsonObject, reference: HostReference, cluster: str = "") -> tuple[str, ...]:
    machine: JsonObject = {"spec": {"clusterName": cluster}}
    objects = {"host": host, "machine": machine}
    names = (expression.value(objects) for expression in reference.node_names)
    return tuple(claim.name for claim in _claims(names, NameStrength.OBJECT, reference.kind))


def claimed_names(machine: MachineView) -> tuple[str, ...]:
    return tuple(claim.name for claim in node_names(machine))


def object_names(machine: MachineView) -> tuple[str, ...]:
    """Return a machine's names by objects of the management cluster, which no guest writes."""
    if machine.given_name is not None:
        return (machine.given_name,) if machine.given_name else ()
    return tuple(claim.name for claim in _of_objects(machine))


def _of_objects(machine: MachineView) -> Iterator[NameClaim]:
    if machine.is_pool_instance:
        return
    yield from _claims([machine.name], NameStrength.OBJECT, f"{machine.kind} metadata.name")
    if machine.infra is not None:
        infra: JsonObject = {"metadata": {"name": machine.infra.name, "namespace": machine.namespace}}
        names = [machine.infra.name, *(name.value({"infra": infra}) for name in known_kind(machine.infra).node_names)]
        yield from _claims(names, NameStrength.OBJECT, f"{machine.infra.kind} metadata.name")


def _claims(names: Iterable[str], strength: NameStrength, source: str) -> Iterator[NameClaim]:
    """Normalize names; what is not a host's own name is no claim."""
    for name in names:
        normalized = name.lower().removesuffix(".") if name.isascii() else ""
        if is_dns_name(normalized) and not _is_local(normalized):
            yield NameClaim(normalized, strength, source)


def _is_local(name: str) -> bool:
    """Return whether a name is an IP address or the loopback's (RFC 6761, section 6.3), which no host has alone."""
    if name.partition(".")[0] == "localhost":
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
