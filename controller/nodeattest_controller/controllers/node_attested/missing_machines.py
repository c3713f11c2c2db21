"""Machines that are no members of a cluster yet, or no more: they are counted where Nodes are deleted.

Promises: between the end of a machine whose Node was deleted and the join of the one that takes its place there is no
moment at which nothing is counted for it. What ended is kept in memory only: a replica that takes the cluster over in
the moment before Cluster API makes the new Machine counts one less. Leaves to others: the members themselves.
Source: cluster-api internal/controllers/machinehealthcheck (a Machine whose Node is gone is remediated: deleted) and
internal/controllers/machineset (makes the new one when the old one is gone); exp/internal/controllers/machinepool
(``spec.replicas`` and ``spec.providerIDList``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import mapping, strings, text
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.batches import in_batches
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["MissingMachines"]

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
