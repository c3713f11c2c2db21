"""The identity rules that every provider is held to, as docs/identity-rules.md numbers them. Pure.

A provider proves that a *machine* asks; these rules prove that the machine may have this *name* in this cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import NameClaim, NameSources, NameStrength, claim_to, node_names
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import MachineName, ProviderID, printable
from nodeattest_providers.verifier_interface import NodeRequest

POOL_REMEDY: Final = (
    "name each instance's providerID, endorsement key and nodeName in the policy's spec.tpm.endorsementKeys (provider "
    "tpm), attest by aws, azure or gcp, which prove names, or use a MachineDeployment or an infrastructure provider "
    "that makes Machines for the pool's instances"
)
"""What gives a MachinePool's instances names; trust on first use never does."""
_NO_NAME: Final = "a name that the provider proves: an instance of a MachinePool without Machines has none of its own"
_MAX_LISTED: Final = 8
"""Names that a message lists."""


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
    """Whether a short name stands for a fully qualified one."""
    is_alive: Callable[[Attestation], bool] = lambda _attestation: True
    """Whether an attestation record's machine still exists; a record without one is about to be collected."""


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
        raise Unavailable(
            Reason.MACHINE_NOT_FOUND,
            f"no Machine of this cluster has provider ID {request.csr.provider_id!r}",
            remedy="check the provider ID that the node was given against Machine.spec.providerID",
        )
    if len(candidates) > 1:
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected="one Machine with this provider ID",
            got=", ".join(sorted(f"{member.kind} {member.name}" for member in candidates)),
            remedy="give each Machine its own provider ID",
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
        raise _not_ready(f"{member.kind} {member.name} or its cluster is paused", "resume it")
    if member.flaw:
        raise Unavailable(
            Reason.RECORD_INVALID if member.kind == "MachineRecord" else Reason.MACHINE_TOO_LARGE,
            f"{member.kind} {member.name}: {member.flaw}",
            remedy=f"correct the {member.kind}; the request continues by itself",
        )
    if not member.bootstrap_ready and not member.node_ref_name:  # a machine with a node has had its data
        raise _not_ready(
            f"the bootstrap data of {member.kind} {member.name} is not ready", "wait for BootstrapConfigReady"
        )


def has_name(member: MachineView, node_name: str, holders: Sequence[Attestation]) -> bool:
    """Rule 2: whether a node's name is a member's by more than the addresses that its guest reports now.

    By its nodeRef, by a record, or by the ledger, of which ``holders`` bound the name. The guest may have chosen it.
    """
    return node_name in {member.node_ref_name, member.given_name} or any(_holds(one, member) for one in holders)


def check_node_name(request: NodeRequest, machine: MachineView, around: NameContext, sources: NameSources) -> None:
    """Rule 2: the requested name is this Machine's, and no other Machine's too.

    Of two claims the stronger one counts; two of the same strength exclude each other. So addresses, which a guest can
    invent, take no name from a Machine that has it by more.
    """
    name, claims = request.csr.node_name, node_names(machine, sources)
    own = check_claim(name, claims, short_names=around.short_names)
    if around.registered - {machine.provider_id}:
        raise _taken(
            "the policy gives this node name to another machine",
            "give this host another name, or correct the nodeName in the policy (spec.tpm.endorsementKeys)",
        )
    others = [
        other.name
        for other in around.claimants
        if other.uid != machine.uid
        and not other.deleting
        and (claim := claim_to(node_names(other), name, short_names=around.short_names)) is not None
        and claim.strength >= own.strength
    ]
    others += around.hosts if own.strength is not NameStrength.REGISTERED else ()
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


def check_machine_name(member: MachineView, proven: MachineName | None) -> None:
    """Rule 7: the Machine that the evidence proves, if it proves one, is this one; a pool instance has no Machine."""
    if proven is None or (proven == member.name and not member.is_pool_instance):
        return
    raise Denied(
        Reason.EVIDENCE_FOR_OTHER_MACHINE,
        expected=f"evidence of {member.kind} {member.name}, which has provider ID {member.provider_id}",
        got=f"evidence of Machine {printable(proven)}",
        remedy="let each machine attest itself, and correct the provider ID of whichever Machine has the wrong one",
    )


def check_pool_instance(member: MachineView, *, has_machines: bool) -> None:
    """Rule 1: an instance that boots before Cluster API has made its Machine waits for it.

    ``has_machines``: whether the pool's infrastructure provider has one made for each instance.
    """
    if has_machines:
        raise Unavailable(
            Reason.MACHINE_NOT_FOUND,
            f"no Machine of this cluster has provider ID {member.provider_id!r}, which MachinePool {member.name} lists",
            remedy="wait until Cluster API has made the instance's Machine",
        )


def _holds(holder: Attestation, member: MachineView) -> bool:
    return holder.provider_id == member.provider_id and holder.has_joined


def check_no_hijack(member: MachineView, around: NameContext, node: JsonObject | None) -> None:
    """Rule 3: nobody else already has the name, neither as a Node nor in the ledger."""
    holders = [holder for holder in around.holders if holder.provider_id != member.provider_id]
    if any(around.is_alive(holder) for holder in holders):
        raise _taken("another Machine is bound to this node name", "delete the other Machine first")
    if holders:
        raise _not_ready("the attestation record of the name's former machine is not collected yet", "wait")
    node_provider_id, node_uid = text(node, "spec", "providerID"), text(node, "metadata", "uid")
    if node is None or node_provider_id == member.provider_id:
        return
    if node_provider_id:
        raise _taken("the Node of this name has another provider ID", "delete the stale Node, or rename this machine")
    if member.node_ref_uid != node_uid:
        raise _taken(
            "the Node of this name has no provider ID and is not the Machine's nodeRef",
            "set the Node's provider ID, or delete the stale Node",
        )


def check_fingerprints(member: MachineView, around: NameContext, holders: Sequence[Attestation]) -> None:
    """Rule 3: what a machine proves itself by (its TPM, its secret) proves no other Machine of the cluster."""
    others = [holder for holder in holders if holder.provider_id != member.provider_id]
    if any(around.is_alive(other) for other in others):
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected="a TPM or secret of this Machine alone",
            got="one that another Machine is bound to",
            remedy="register each machine's own TPM or secret; a cloned one is refused",
        )
    if others:
        raise _not_ready("the attestation record of this hardware's former machine is not collected yet", "wait")


def check_binding(
    request: NodeRequest,
    member: MachineView,
    attestation: Attestation,
    *,
    secure: bool,
    is_owned: bool = False,
) -> None:
    """Rules 3 and 4: a machine that is bound already is not bound again by anyone who holds a token.

    Unless an operator reset its attestation record: then it joins as a new one does. ``is_owned``: whether the record's
    owner lists it, too: an instance of a pool may have joined before Cluster API made its Machine.
    """
    if attestation.resource_version and attestation.owner_uid != member.uid and not is_owned:
        raise _not_ready("the attestation record of this machine's predecessor is not collected yet", "wait")
    if request.is_renewal or attestation.entry_for(request.csr.spki_sha256) is not None:
        return
    joined = attestation.has_joined
    if member.node_ref_name and not joined and not attestation.was_reset:
        raise _unattested("a Machine with a nodeRef and no attestation record", "re-create the Machine")
    if not secure and joined:
        raise Denied(
            Reason.MACHINE_ALREADY_BOUND,
            expected="the key that this machine joined with",
            got="another key, and an insecure provider cannot tell whose",
            remedy="nodeattest machines reset, or re-create the Machine",
        )


def check_takeover(request: NodeRequest, attestation: Attestation, node: JsonObject | None) -> None:
    """Rules 3 and 4: no token takes over a Node that stands although its machine never joined attested.

    A nodeRef says that a Machine has a node (``check_binding``), but nobody writes one for a MachineRecord, and for a
    Machine Cluster API does so some time after the node joined. The Node itself, read live, is there from the first.
    """
    if request.is_renewal or node is None or attestation.has_joined or attestation.was_reset:
        return
    raise _unattested(
        f"Node {request.csr.node_name} stands, and no attestation record",
        "delete the Node if nothing runs there any more",
    )


def check_adoption(
    request: NodeRequest, member: MachineView, attestation: Attestation, node: JsonObject | None
) -> None:
    """Rules 3 and 4: who asks as a node, without ever having joined attested, is the node that the Machine has.

    Its certificate was signed in-tree, where nobody asked which machine gets it; the provider proves the machine now.
    1. Cluster API has found the Machine's node (a pool's instances have no nodeRef of their own), or an operator's
    record names it and the Node has the record's provider ID; the name was compared by rule 2. 2. That Node is in
    the cluster, and rule 3 has compared its provider ID.
    """
    if not request.is_renewal or attestation.has_joined or attestation.was_reset:
        return
    if member.given_name is not None and member.node_ref_name is None:  # 1
        if node is not None and text(node, "spec", "providerID") == member.provider_id:
            return
        raise _not_ready(
            f"no Node {request.csr.node_name} with the provider ID of {member.kind} {member.name} is in the "
            "cluster, so it cannot be adopted",
            "let kubelet register the Node with --provider-id, or name the Node in the record's status.nodeRef",
        )
    if member.node_ref_name is None and not member.is_pool_instance:
        raise _not_ready(
            f"{member.kind} {member.name} has no nodeRef, so its node cannot be adopted yet",
            "let Cluster API find the Node: its provider ID must be the Machine's",
        )
    if node is None:  # 2
        raise _not_ready(
            f"no Node {request.csr.node_name} is in the cluster, so it cannot be adopted",
            "let kubelet register the Node",
        )


def _not_ready(detail: str, remedy: str) -> Unavailable:
    return Unavailable(Reason.MACHINE_NOT_READY, detail, remedy=remedy)


def _unattested(got: str, otherwise: str) -> Denied:
    return Denied(
        Reason.MACHINE_ALREADY_BOUND,
        expected="a Machine without a node, or one whose node joined attested",
        got=got,
        remedy="adopt the node (kubelet-authenticator adopt on it, or nodeattest machines adopt --open), or "
        + otherwise,
    )


def _taken(got: str, remedy: str) -> Denied:
    return Denied(Reason.NODE_NAME_TAKEN, expected="a free node name, or this Machine's own", got=got, remedy=remedy)
