"""Writing into ledgers what came of refusals: the last verdict, and what is done to a Node.

Promises: each write holds only for the ledger that was judged (compare-and-swap); one that somebody overtook is a
Conflict, after which the inventory has the newer ledger.
"""

from __future__ import annotations

from nodeattest_controller.model.attestation import Attestation, parse_attestation
from nodeattest_controller.model.last_decision import LastDecision, Remediation
from nodeattest_controller.model.objects import key_of
from nodeattest_controller.runtime.management_cache import OWN_GROUP, OWN_VERSION, ManagementCache
from nodeattest_kube import paths
from nodeattest_kube.client import Conflict, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["AttestationPatcher"]


class AttestationPatcher:
    """The pen."""

    def __init__(self, management: ManagementCache) -> None:
        self._management = management

    async def judge(self, ledger: Attestation, verdict: LastDecision) -> Attestation:
        """Write the last verdict; raises ApiError."""
        return await self._write(ledger, {"lastVerdict": verdict.render()})

    async def treat(self, ledger: Attestation, treatment: Remediation | None) -> Attestation:
        """Write what is about to be done to the Node, or with None that nothing is left of it; raises ApiError."""
        return await self._write(ledger, {"onFailure": treatment.render() if treatment is not None else None})

    async def _write(self, ledger: Attestation, spec: JsonObject) -> Attestation:
        path = paths.object_path(OWN_GROUP, OWN_VERSION, "machineattestations", ledger.name, namespace=ledger.namespace)
        patch: JsonObject = {"metadata": {"resourceVersion": ledger.resource_version}, "spec": spec}
        client, inventory = self._management.client, self._management.inventory
        key = f"{ledger.namespace}/{ledger.name}"
        try:
            written = await client.merge_patch(path, patch)
        except Conflict:
            inventory.put_ledger(key, await client.get(path))
            raise
        except NotFound:
            inventory.put_ledger(key, None)
            raise
        inventory.put_ledger(key_of(written), written)
        return parse_attestation(written)
