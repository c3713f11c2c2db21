"""Acts on Nodes: records in the MachineAttestation what ``decide`` chose, then does it, or undoes it.

Promises: only the machine's own Node is touched, as it was read just now (resourceVersion, and the UID for a delete);
every step may run twice; a replica that dies between the two writes leaves a record of what it would have done, which
the next one does. Leaves to others: when to check again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from nodeattest_controller.controllers.node_attested.attestation_patcher import AttestationPatcher
from nodeattest_controller.controllers.node_attested.decide import node_patch
from nodeattest_controller.controllers.node_attested.events import NodeAttestedEvents
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.last_decision import Remediation
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import text
from nodeattest_controller.model.policy import FailureAction
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, Forbidden, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["NodeActions"]


class NodeActions:
    """Actions on the Nodes of one workload cluster."""

    def __init__(
        self,
        client: ApiClient,
        attestations: AttestationPatcher,
        events: NodeAttestedEvents,
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
        if before is None or (before.action, before.node_uid) != (action, uid):
            attestation = await self._attestations.record_remediation(
                attestation, self._treatment(attestation, action, uid)
            )
        try:
            done = await self._do(node, action)
        except Forbidden:
            if before is None:  # nothing was done, so it must not count against the share
                await self._attestations.record_remediation(attestation, None)
            raise
        if done:
            self._events.treated(member, attestation, action)
        return attestation

    async def release(self, member: MachineView, attestation: Attestation) -> Attestation:
        """Undo what was done to the machine's Node, and forget it; raises ApiError."""
        node = await self._own_node(member, attestation)
        if node is not None:
            await self._do(node, FailureAction.NONE)
        attestation = await self._attestations.record_remediation(attestation, None)
        self._events.released(member, attestation)
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
        if patch is None:
            return False
        await self._client.merge_patch(path, patch)
        return True

    def _treatment(self, attestation: Attestation, action: FailureAction, uid: str) -> Remediation:
        return Remediation(
            action=action,
            node_name=attestation.node_name,
            node_uid=uid,
            reason=attestation.verdict.reason if attestation.verdict else "",
            time=self._now(),
        )
