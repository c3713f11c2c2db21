"""What a policy's ``onFailure`` does to Nodes of one workload cluster, and what is recorded of it.

Only the machine's own Node is touched, as it was read just now (resourceVersion, and the UID for a delete). What is
done is recorded first, so that a replica which dies in between leaves a record of what the next one does. Each write of
a MachineAttestation is a compare-and-swap on the version that was read; after a Conflict the index has the newer one.
Out of scope: which Nodes (``decide``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.node_attested.decide import node_patch
from nodeattest_controller.model.attestation import Attestation, LastDecision, Remediation, parse_attestation
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.model.refusals import RecordedRefusal, render_refusals
from nodeattest_controller.runtime.cluster_log import ClusterEvents, member_ref
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Conflict, Forbidden, NotFound
from nodeattest_kube.store import in_batches
from nodeattest_parsing.objects import mapping, rfc3339, strings, text
from nodeattest_parsing.values import JsonObject

_EVENTS: Final = {
    FailureAction.TAINT: "NodeTainted",
    FailureAction.CORDON: "NodeCordoned",
    FailureAction.DELETE_NODE: "NodeDeleted",
}
HELD: Final = 600.0
"""Seconds for which the place of a machine is held that is gone after its Node was deleted."""


class AttestationPatcher:
    """Patches MachineAttestations by compare-and-swap; raises ApiError."""

    def __init__(self, management: ManagementCache) -> None:
        self._management = management

    async def record_decision(self, attestation: Attestation, verdict: LastDecision) -> Attestation:
        """Write the last decision."""
        return await self._write(attestation, {"spec": {"lastVerdict": verdict.render()}})

    async def record_remediation(self, attestation: Attestation, treatment: Remediation | None) -> Attestation:
        """Write the action that is about to be done to the Node, None when it is undone."""
        done = treatment.render() if treatment is not None else None
        return await self._write(attestation, {"spec": {"onFailure": done}})

    async def record_refusals(self, attestation: Attestation, refusals: Sequence[RecordedRefusal]) -> Attestation:
        """Write the refused requests, which are status."""
        return await self._write(attestation, {"status": {"refusals": [*render_refusals(refusals)]}}, "/status")

    async def _write(self, attestation: Attestation, change: JsonObject, subresource: str = "") -> Attestation:
        patch: JsonObject = {"metadata": {"resourceVersion": attestation.resource_version}, **change}
        client, where = self._management.client, (attestation.namespace, attestation.name)
        try:
            written = await self._management.ask_attestation(
                *where, lambda path: client.merge_patch(path + subresource, patch)
            )
        except Conflict:
            await self._management.ask_attestation(*where, client.get)
            raise
        return parse_attestation(written)


class NodeActions:
    """Actions on the Nodes of one workload cluster."""

    def __init__(
        self,
        client: ApiClient,
        attestations: AttestationPatcher,
        events: ClusterEvents,
        now: Callable[[], datetime],
    ) -> None:
        self._client = client
        self._attestations = attestations
        self._events = events
        self._now = now

    async def treat(self, member: MachineView, attestation: Attestation, action: FailureAction) -> Attestation:
        """Do it to the machine's Node, where it has one; raises ApiError. Returns the ledger as it is then."""
        node = await self._own_node(member, attestation)
        if node is None:
            return attestation
        before, uid = attestation.treatment, text(node, "metadata", "uid")
        reason = attestation.verdict.reason if attestation.verdict else ""
        if before is None or (before.action, before.node_uid) != (action, uid):
            record = Remediation(
                action=action, node_name=attestation.node_name, node_uid=uid, reason=reason, time=self._now()
            )
            attestation = await self._attestations.record_remediation(attestation, record)
        try:
            done = await self._do(node, action)
        except Forbidden:
            if before is None:  # nothing was done, so it must not count against the share
                await self._attestations.record_remediation(attestation, None)
            raise
        if done:
            ends = max((entry.not_after for entry in attestation.issued), default=None)
            until = f"; its certificate stays good until {rfc3339(ends)}" if ends else ""
            what = f"onFailure {action}, because its own request was refused: {reason}{until}"
            who = {"machine": member.name, "node": attestation.node_name}
            self._events.warn(None, "treated a node", **who, action=action, reason=reason)
            message = f"Node {attestation.node_name}: {what}"
            self._events.event("Warning", _EVENTS[action], message, on=member_ref(member))
        return attestation

    async def release(self, member: MachineView, attestation: Attestation) -> Attestation:
        """Undo what was done to the machine's Node, and forget it; raises ApiError."""
        node = await self._own_node(member, attestation)
        if node is not None:
            await self._do(node, FailureAction.NONE)
        attestation = await self._attestations.record_remediation(attestation, None)
        self._events.info("released a node", machine=member.name, node=attestation.node_name)
        message = f"Node {attestation.node_name}: what onFailure did is undone"
        self._events.event("Normal", "NodeReleased", message, on=member_ref(member))
        return attestation

    async def _own_node(self, member: MachineView, attestation: Attestation) -> JsonObject | None:
        """Read the Node of the attestation record's name, unless it is not this machine's (identity rule 3)."""
        try:
            node = await self._client.get(paths.core_path("nodes", attestation.node_name))
        except NotFound:
            return None
        provider_id, uid = text(node, "spec", "providerID"), text(node, "metadata", "uid")
        is_own = provider_id == member.provider_id if provider_id else uid == member.node_ref_uid
        return node if is_own else None

    async def _do(self, node: JsonObject, action: FailureAction) -> bool:
        path = paths.core_path("nodes", text(node, "metadata", "name"))
        if action is FailureAction.DELETE_NODE:
            await self._client.delete(path, uid=text(node, "metadata", "uid"))
            return True
        patch = node_patch(node, action)
        if patch is not None:
            await self._client.merge_patch(path, patch)
        return patch is not None


class MissingMachines:
    """Machines of one cluster that are no members yet, or no more, counted where Nodes are deleted.

    Between the end of a machine whose Node was deleted and the join of its replacement there is no moment at which
    nothing is counted for it. What was deleted is kept in memory only: a replica that takes over before Cluster API
    makes the new Machine counts one less.
    Source: cluster-api internal/controllers/machinehealthcheck (a Machine whose Node is gone is deleted),
    internal/controllers/machineset (makes the new one when the old one is gone).
    """

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
            treatment = attestation.treatment if attestation is not None else None
            if treatment is not None and treatment.action is FailureAction.DELETE_NODE:
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
