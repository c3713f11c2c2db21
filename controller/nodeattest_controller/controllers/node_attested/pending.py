"""CSR outcomes of a cluster's machines that are not recorded yet, and awaited machines. Pure but for the clock.

Bounded by the cluster's machines; losing outcomes costs nothing that lasts, for a node asks again. Machines that are no
members yet, or no more, are counted where Nodes are deleted: between the end of a machine whose Node was deleted and
the join of the one that takes its place there is no moment at which nothing is counted for it. What ended is kept in
memory only: a replica that takes over in the moment before Cluster API makes the new Machine counts one less. Source:
cluster-api internal/controllers/machinehealthcheck (a Machine whose Node is gone is deleted),
internal/controllers/machineset (makes the new one when the old one is gone).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from nodeattest_controller.controllers.node_attested.conditions import (
    DenialSeverity,
    RefusedClaim,
    is_machine_failure,
    is_refused,
    severity_of,
)
from nodeattest_controller.controllers.node_attested.decide import is_failing
from nodeattest_controller.controllers.node_attested.refusal_recorder import SILENT, RefusalRecorder
from nodeattest_controller.model.attestation import APPROVED, DENIED, Attestation, LastDecision
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.model.refusals import MAX_NAME
from nodeattest_controller.runtime.cluster_controller import CSRDenied, CSRIssued
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.batches import in_batches
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_parsing.objects import mapping, strings, text
from nodeattest_parsing.values import JsonObject

HELD: Final = 600.0
"""Seconds for which the place of a machine is held that is gone after its Node was deleted."""


class MissingMachines:
    """Those of one cluster."""

    def __init__(self, key: ClusterKey, management: ManagementCache, clock: Callable[[], float]) -> None:
        self._key = key
        self._management = management
        self._clock = clock
        self._deleted: dict[str, float] = {}
        """When a machine was last there whose Node was deleted, by provider ID."""

    async def count(self, pairs: Sequence[tuple[MachineView, Attestation | None]]) -> int:
        """Count them, given the members that there are with their ledgers."""
        now = self._clock()
        for member, attestation in pairs:
            if (
                attestation is not None
                and attestation.treatment
                and attestation.treatment.action is FailureAction.DELETE_NODE
            ):
                self._deleted[member.provider_id] = now
        self._deleted = {gone: last for gone, last in self._deleted.items() if now - last < HELD}
        there = {member.provider_id for member, _attestation in pairs}
        machines = self._management.objects_of(self._key, "machines")
        pools = self._management.objects_of(self._key, "machinepools")
        nameless = sum([not text(machine, "spec", "providerID") async for machine in in_batches(machines)])
        return nameless + sum(_short_by(pool) for pool in pools) + len(self._deleted.keys() - there)


def _short_by(pool: JsonObject) -> int:
    """Return how many instances a MachinePool wants that it does not list."""
    wanted = mapping(pool, "spec").get("replicas")
    return max(0, wanted - len(strings(pool, "spec", "providerIDList"))) if isinstance(wanted, int) else 0


CLAIM_BURST, CLAIM_RATE = 2, 1 / 300
"""Refused claims of one requester on one machine that are shown at once, and a second after that."""
CLAIMS_BURST, CLAIMS_RATE = 50, 1 / 10
"""The same of all requesters on all machines of a cluster: any token can cause them."""
VERDICT_BURST, VERDICT_RATE = 6, 1 / 300
"""Refusals of one node that are written down after its first one."""


class PendingOutcomes:
    """What was said of one cluster's machines, by provider ID."""

    def __init__(self, key: ClusterKey, inventory: Inventory, clock: Callable[[], float]) -> None:
        self._key = key
        self._inventory = inventory
        self._refusals: dict[str, CSRDenied] = {}
        self._grants: dict[str, CSRIssued] = {}
        self._claims: dict[str, RefusedClaim] = {}
        """What is shown of each machine that has not joined."""
        self._verdicts = RateLimiter(burst=VERDICT_BURST, per_second=VERDICT_RATE, clock=clock)
        self._claim = RateLimiter(burst=CLAIM_BURST, per_second=CLAIM_RATE, clock=clock)
        self._all_claims = RateLimiter(burst=CLAIMS_BURST, per_second=CLAIMS_RATE, clock=clock)
        self.records = RefusalRecorder(clock)
        """Of machines that have a MachineAttestation."""

    def granted(self, verdict: CSRIssued) -> None:
        """Take in a certificate; its attestation record may be older, where the same key asked again."""
        self._refusals.pop(verdict.member.provider_id, None)
        self._grants[verdict.member.provider_id] = verdict

    def refused(self, verdict: CSRDenied) -> bool:
        """Take in a refusal; returns whether something of the machine has to be written.

        1. The provider ID is a claim, so it must be one machine's of this cluster. 2. A node speaks for the machine
        that the ledger bound to its name, and for no other: naming another's provider ID is not listened to. 3. A token
        says nothing of a machine; of one that has not joined the last refused claim is shown. 4. A MachineAttestation
        that there is keeps who was refused for what; none is made for it (docs/decisions.md).
        """
        provider_id = verdict.provider_id
        members = self._inventory.members(self._key, provider_id)
        if len(members) != 1:  # 1
            return False
        own = self._inventory.own_attestation(self._key, provider_id)
        recorded = own is not None and self.records.note(verdict, own)  # 4
        return self._refused(verdict, members[0]) or recorded

    def _refused(self, verdict: CSRDenied, member: MachineView) -> bool:
        """Take in what the condition shows of a refusal: rules 2 and 3."""
        provider_id = verdict.provider_id
        attestation = self._inventory.attestation(self._key, provider_id)
        if attestation is not None and attestation.issued:  # 2
            if attestation.node_name != verdict.node_name or severity_of(verdict) is DenialSeverity.NOTHING:
                return False
            known = self._refusals.get(provider_id)
            if known is None or severity_of(known) <= severity_of(verdict):
                self._refusals[provider_id] = verdict
            return True
        if verdict.by_node or verdict.reason in SILENT or member.is_pool_instance or member.node_ref_name:
            return False
        requester = provider_id, verdict.username[:MAX_NAME]  # 3
        if not (self._all_claims.has_token("") and self._claim.take(requester) and self._all_claims.take("")):
            return False
        self._claims[provider_id] = RefusedClaim(verdict.at, verdict.reason)
        return True

    def review_claims(self) -> None:
        """Forget claims on machines that joined or went."""
        self._claims = {one: claim for one, claim in self._claims.items() if self._is_awaited(one)}

    def verdict(self, provider_id: str, attestation: Attestation) -> LastDecision | None:
        """Return what has to be written down of a machine; None where nothing is news.

        A refusal before the newest certificate is history, one that says the same again no news, and one that says
        less than the ledger does hides nothing.
        """
        refusal, grant = self._refusals.get(provider_id), self._grants.get(provider_id)
        known = attestation.verdict
        if refusal is not None:
            newest = max((entry.issued_at for entry in attestation.issued), default=None)
            if newest is None or newest > refusal.at:  # what this replica granted since has taken the word back
                return None
            if known is not None and is_refused(attestation):
                less = is_failing(attestation) and not is_machine_failure(refusal.reason)
                if known.reason == refusal.reason or less or not self._verdicts.take(provider_id):
                    return None
            return LastDecision(DENIED, refusal.reason, refusal.at)
        if (
            grant is not None
            and known is not None
            and is_refused(attestation)
            and (known.time is None or known.time <= grant.at)
        ):
            return LastDecision(APPROVED, "Attested", grant.at)
        return None

    def pending(self) -> set[str]:
        """Return the machines whose MachineAttestation lacks something that may be written now."""
        return {*self._refusals, *self._grants, *self.records.machines()}

    def remembered(self, provider_id: str) -> None:
        """Hear that the ledger has it."""
        self._refusals.pop(provider_id, None)
        self._grants.pop(provider_id, None)

    def claim(self, provider_id: str, written: RefusedClaim | None = None) -> RefusedClaim | None:
        """Return the refused claim on a machine that its condition shall show; ``written``: the one that it has."""
        return self._claims.get(provider_id, written)

    def forget(self, provider_id: str) -> None:
        """Hear that the machine is gone."""
        self.remembered(provider_id)
        self.records.forget(provider_id)
        self._claims.pop(provider_id, None)

    def _is_awaited(self, provider_id: str) -> bool:
        """Return whether one machine has this provider ID, and has not joined."""
        members = self._inventory.members(self._key, provider_id)
        attestation = self._inventory.attestation(self._key, provider_id)
        return len(members) == 1 and not members[0].node_ref_name and not (attestation and attestation.issued)
