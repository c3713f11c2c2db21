"""Patches MachineAttestations: the last decision on a node's own request, the action on its Node, refused requests.

Promises: each write is a compare-and-swap on the version that was read; after a Conflict the index has the newer one.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeattest_controller.model.attestation import Attestation, parse_attestation
from nodeattest_controller.model.last_decision import LastDecision, Remediation
from nodeattest_controller.model.refusals import RecordedRefusal, render_refusals
from nodeattest_controller.runtime.management_cache import OWN_GROUP, OWN_VERSION, ManagementCache
from nodeattest_kube import paths
from nodeattest_kube.client import Conflict, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["AttestationPatcher"]


class AttestationPatcher:
    """Patches MachineAttestations by compare-and-swap."""

    def __init__(self, management: ManagementCache) -> None:
        self._management = management

    async def record_decision(self, attestation: Attestation, verdict: LastDecision) -> Attestation:
        """Write the last decision; raises ApiError."""
        return await self._write(attestation, {"spec": {"lastVerdict": verdict.render()}})

    async def record_remediation(self, attestation: Attestation, treatment: Remediation | None) -> Attestation:
        """Write the action that is about to be done to the Node, None when it is undone; raises ApiError."""
        done = treatment.render() if treatment is not None else None
        return await self._write(attestation, {"spec": {"onFailure": done}})

    async def record_refusals(self, attestation: Attestation, refusals: Sequence[RecordedRefusal]) -> Attestation:
        """Write the refused requests, which are status; raises ApiError."""
        return await self._write(attestation, {"status": {"refusals": [*render_refusals(refusals)]}}, "/status")

    async def _write(self, attestation: Attestation, change: JsonObject, subresource: str = "") -> Attestation:
        path = paths.object_path(
            OWN_GROUP, OWN_VERSION, "machineattestations", attestation.name, namespace=attestation.namespace
        )
        patch: JsonObject = {"metadata": {"resourceVersion": attestation.resource_version}, **change}
        client, order = self._management.client, self._management.attestation_order
        key = f"{attestation.namespace}/{attestation.name}"
        before = order.known(key)
        try:
            written = await client.merge_patch(path + subresource, patch)
        except Conflict:
            before = order.known(key)
            order.answered(key, before, await client.get(path))
            raise
        except NotFound:
            order.answered(key, before, None)
            raise
        order.answered(key, before, written)
        return parse_attestation(written)
