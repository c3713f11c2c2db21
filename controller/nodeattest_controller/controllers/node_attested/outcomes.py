"""Outcomes of CSRs of one cluster's machines that are not written yet, by provider ID. No I/O.

They are bounded by the cluster's machines, and a node asks again if they are lost. A flood causes no more writes than
the rates below allow, and one of a token or a stranger takes none of the node's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodeattest_controller.controllers.node_attested.conditions import (
    DenialSeverity,
    RefusedClaim,
    is_failing,
    is_machine_failure,
    is_refused,
    severity_of,
)
from nodeattest_controller.model import attestation_status
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.runtime.cluster_controller import CSRDenied, CSRIssued
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_kube.periodic import RateLimiter
from nodeattest_parsing.values import one_line
from nodeattest_providers.errors import Reason

_SILENT: Final = frozenset({Reason.SUPERSEDED, Reason.CHALLENGE_EXPIRED})
"""How first requests end."""
REQUESTER_BURST, REQUESTER_RATE = 6, 1 / 300
"""Refusals of one requester on one machine that are shown or recorded at once, and a second after that."""
OTHERS_BURST, OTHERS_RATE = 50, 1 / 10
"""The same on all machines of a cluster together, of others than their nodes: any token can cause them."""
DECISION_BURST, DECISION_RATE = 6, 1 / 300
"""Refusals of one node that replace its last decision, after the first one."""


class CSROutcomes:
    """The outcomes of one cluster."""

    def __init__(self, key: ClusterKey, inventory: Inventory, clock: Callable[[], float]) -> None:
        self._key = key
        self._inventory = inventory
        self._denied: dict[str, CSRDenied] = {}
        self._issued: dict[str, CSRIssued] = {}
        self._claims: dict[str, RefusedClaim] = {}
        self._refusals: dict[str, tuple[attestation_status.RecordedRefusal, ...]] = {}
        """What the MachineAttestations' status lacks."""
        self._decisions = RateLimiter(burst=DECISION_BURST, per_second=DECISION_RATE, clock=clock)
        self._requesters = RateLimiter(burst=REQUESTER_BURST, per_second=REQUESTER_RATE, clock=clock)
        self._others = RateLimiter(burst=OTHERS_BURST, per_second=OTHERS_RATE, clock=clock)

    def granted(self, verdict: CSRIssued) -> None:
        """Take in a certificate; its attestation record may be older, where the same key asked again."""
        self._denied.pop(verdict.member.provider_id, None)
        self._issued[verdict.member.provider_id] = verdict

    def refused(self, denied: CSRDenied) -> bool:
        """Take in a refusal; returns whether something of the machine has to be written.

        1. The provider ID is a claim, so it must be one machine's of this cluster. 2. A MachineAttestation that there
        is keeps who was refused for what; none is made for it (docs/decisions.md). 3. A node speaks for the machine
        that the ledger bound to its name, and for no other. 4. A token says nothing of a machine; of one that has not
        joined the last refused claim is shown.
        """
        provider_id = denied.provider_id
        members = self._inventory.members(self._key, provider_id)
        if len(members) != 1 or denied.reason in _SILENT:  # 1
            return False
        own = self._inventory.own_attestation(self._key, provider_id)
        attestation = self._inventory.attestation(self._key, provider_id)
        requester = _requester(denied, own)
        may_write = self._may_write(denied, requester)
        if own is not None and may_write:  # 2
            refusal = attestation_status.RecordedRefusal(
                requester=requester,
                reason=denied.reason,
                time=denied.at,
                request=one_line(denied.request_name, attestation_status.MAX_REQUEST_NAME),
                message=one_line(denied.message.removeprefix(f"{denied.reason}: "), attestation_status.MAX_MESSAGE),
            )
            refusals = (*self.refusals(provider_id), refusal)
            self._refusals[provider_id] = attestation_status.latest_refusals(refusals, denied.at)
        if attestation is not None and attestation.issued:  # 3
            severity = severity_of(denied) if attestation.node_name == denied.node_name else DenialSeverity.NOTHING
            known = self._denied.get(provider_id)
            if severity is not DenialSeverity.NOTHING and (known is None or severity_of(known) <= severity):
                self._denied[provider_id] = denied
            return severity is not DenialSeverity.NOTHING or (own is not None and may_write)
        if may_write and not (denied.by_node or members[0].is_pool_instance or members[0].node_ref_name):  # 4
            self._claims[provider_id] = RefusedClaim(denied.at, denied.reason)
        return may_write

    def _may_write(self, denied: CSRDenied, requester: attestation_status.Requester) -> bool:
        """Return whether the rates allow a write that this refusal causes."""
        of_machine = (denied.provider_id, requester, denied.username[: attestation_status.MAX_REQUEST_NAME])
        if requester is attestation_status.Requester.NODE:
            return self._requesters.take(of_machine)
        return self._others.has_token("") and self._requesters.take(of_machine) and self._others.take("")

    def forget_joined(self) -> None:
        """Forget claims on machines that joined or went."""

        def is_awaited(provider_id: str) -> bool:
            members = self._inventory.members(self._key, provider_id)
            attestation = self._inventory.attestation(self._key, provider_id)
            return len(members) == 1 and not members[0].node_ref_name and not (attestation and attestation.issued)

        self._claims = {one: claim for one, claim in self._claims.items() if is_awaited(one)}

    def decision(self, provider_id: str, attestation: Attestation) -> attestation_status.LastDecision | None:
        """Return the decision that the machine's MachineAttestation lacks.

        A refusal is not recorded if it is older than the newest certificate, has the recorded reason, or is less severe
        than the recorded one.
        """
        denied, issued, known = self._denied.get(provider_id), self._issued.get(provider_id), attestation.verdict
        if denied is not None:
            newest = max((entry.issued_at for entry in attestation.issued), default=None)
            if newest is None or newest > denied.at:
                return None
            if known is not None and is_refused(attestation):
                less = is_failing(attestation) and not is_machine_failure(denied.reason)
                if known.reason == denied.reason or less or not self._decisions.take(provider_id):
                    return None
            return attestation_status.LastDecision(attestation_status.DENIED, denied.reason, denied.at)
        if issued is None or known is None or not is_refused(attestation):
            return None
        is_older = known.time is None or known.time <= issued.at
        return attestation_status.LastDecision(attestation_status.APPROVED, "Attested", issued.at) if is_older else None

    def unwritten(self) -> set[str]:
        """Return the machines whose MachineAttestation lacks something."""
        return {*self._denied, *self._issued, *self._refusals}

    def refusals(self, provider_id: str) -> tuple[attestation_status.RecordedRefusal, ...]:
        """Return the refused requests that a machine's MachineAttestation lacks."""
        return self._refusals.get(provider_id, ())

    def claim(self, provider_id: str, written: RefusedClaim | None = None) -> RefusedClaim | None:
        """Return the refused claim that a machine's condition shall show; ``written``: the one that it has."""
        return self._claims.get(provider_id, written)

    def decision_written(self, provider_id: str) -> None:
        self._denied.pop(provider_id, None)
        self._issued.pop(provider_id, None)

    def refusals_written(self, provider_id: str, written: tuple[attestation_status.RecordedRefusal, ...]) -> None:
        """Forget what the status has, unless more came meanwhile."""
        if self.refusals(provider_id) == written:
            self._refusals.pop(provider_id, None)

    def forget(self, provider_id: str) -> None:
        self.decision_written(provider_id)
        self._refusals.pop(provider_id, None)
        self._claims.pop(provider_id, None)


def _requester(denied: CSRDenied, attestation: Attestation | None) -> attestation_status.Requester:
    """Return who asked; a node speaks for the machine that its record names, and for no other."""
    if denied.by_node and attestation is not None and denied.node_name == attestation.node_name:
        return attestation_status.Requester.NODE
    return (
        attestation_status.Requester.BOOTSTRAP
        if denied.username.startswith(USER_PREFIX)
        else attestation_status.Requester.OTHER
    )
