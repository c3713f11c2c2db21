"""Shares clusters among replicas: each opted-in Cluster is a shard, and what belongs to no one cluster is one more.

Promises: a cluster is served only while its Lease is ours, and after the MachineAttestations that its last owner wrote
are in our cache; it is released only when nothing of it is under way any more. So a check across machines in memory (a
key or a name that another machine has) holds when a shard moves.
Leaves to others: the Leases (``nodeattest_kube.shard_elector``), connecting and ending (``cluster_manager``).
Source: ADR 0027.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.lease_annotations import lease_annotations
from nodeattest_controller.runtime.changes import MANAGEMENT_SHARD, ChangeBus
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.trouble import TroubleLog
from nodeattest_controller.settings import Settings
from nodeattest_kube.backoff import RECONNECT
from nodeattest_kube.client import ApiClient, ApiError, Forbidden
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.shard_elector import ShardElector
from nodeattest_kube.shard_leases import ShardGroup

__all__ = ["GROUP_IDENTITY", "ShardManager"]

_LOG: Final = logging.getLogger(__name__)
GROUP_IDENTITY: Final = "shared-among-replicas"
"""Holder of the leader's Lease while clusters are shared: all replicas together, so that none leads beside them."""
REMEDY: Final = "apply manifests/sharding in the management cluster, or take --shard-clusters away"


class ShardManager:
    """One replica's shards (``Ownership``, ``ShardHost``)."""

    def __init__(
        self,
        settings: Settings,
        leases: ApiClient,
        management: ManagementCache,
        *,
        metrics: Metrics,
        changes: ChangeBus,
        may_act: Callable[[], bool],
        still_leads: Callable[[], Awaitable[bool]],
    ) -> None:
        """``leases`` is a client that may send when we may not act; ``still_leads`` is about the group's own Lease."""
        self._management = management
        self._metrics = metrics
        self._may_act = may_act
        self._still_leads = still_leads
        self._changes = changes
        self._stop: list[Callable[[ClusterKey], Awaitable[None]]] = []
        self._wanted: frozenset[str] | None = None
        """Computed once of all clusters, and then changed cluster by cluster."""
        self._joined = False
        group = ShardGroup(settings.namespace, settings.lease_name)
        self._leases = Reflector(leases, group.collection, query=group.query, on_change=self._lease_changed)
        self._shards = ShardElector(
            leases,
            self._leases,
            self,
            group=group,
            identity=settings.identity,
            lease_duration=settings.lease_duration,
            renew_deadline=settings.renew_deadline,
            retry_period=settings.retry_period,
            annotations=lease_annotations(settings.identity),
        )
        self._trouble_log = TroubleLog(_LOG, "cannot share clusters", lambda: self.trouble, _remedy)

    def before_release(self, stop: Callable[[ClusterKey], Awaitable[None]]) -> None:
        """Register what ends all work in a cluster; its Lease is released afterwards."""
        self._stop.append(stop)

    # Ownership

    def owns(self, cluster: ClusterKey) -> bool:
        """Return whether this replica serves the cluster now."""
        return self._may_act() and self._shards.owns(cluster)

    def owns_management(self) -> bool:
        """Return whether what belongs to no one cluster is ours now."""
        return self._may_act() and self._shards.owns(MANAGEMENT_SHARD)

    async def still_owns(self, cluster: ClusterKey) -> bool:
        """Return whether neither another replica nor a leader has served the cluster since this replica does.

        By reads that begin now, of the cluster's Lease and of the group's; raises ApiError.
        """
        return all(await asyncio.gather(self._still_leads(), self._shards.still_owns(cluster)))

    def may_write(self) -> bool:
        """Return whether this replica may still send anything: False forever once its own Lease has run out."""
        return self._may_act() and (self._shards.is_member or not self._joined)

    @property
    def trouble(self) -> ApiError | None:
        """The error that keeps this replica from taking shards; None while there is none."""
        return self._shards.last_error or self._leases.last_error

    def cluster_changed(self, cluster: ClusterKey, keys: frozenset[str] | None) -> None:
        """Take in that a Cluster, its policy or a Secret changed, and with it perhaps whether it is to be served."""
        if keys is not None or self._wanted is None:
            return
        found = self._management.cluster(cluster)
        serves = found is not None and self._management.opts_in(found)
        if serves == (cluster in self._wanted):
            return
        self._wanted = self._wanted | {cluster} if serves else self._wanted - {cluster}
        self._shards.wake()

    async def run(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Take shards while ``serve`` runs; raises LostLease, perhaps in a group, when this replica may not act on."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._leases.run()), tasks.create_task(self._trouble_log.run())]
            await self._shards.run(lambda: self._serve(serve))
            for task in beside:
                task.cancel()

    async def _serve(self, serve: Callable[[], Awaitable[None]]) -> None:
        self._joined = True
        await serve()

    def _lease_changed(self, _name: str, _lease: JsonObject | None) -> None:
        self._shards.wake()

    # ShardHost

    def wanted(self) -> frozenset[str]:
        """Name the shards: every opted-in Cluster, and the management cluster's own."""
        if self._wanted is None:
            self._wanted = frozenset({MANAGEMENT_SHARD, *self._management.opted_in_clusters()})
        return self._wanted

    async def acquire(self, shard: str) -> None:
        """Wait until the cache holds the shard's objects whole, with what its last owner wrote."""
        failures = 0
        while shard != MANAGEMENT_SHARD:
            try:
                await self._management.take_over(ClusterKey(shard))
            except ApiError as error:
                _LOG.warning(
                    "cannot read the objects of a cluster that is taken over",
                    extra=fields(cluster=shard, error=str(error)),
                )
                failures += 1
                await asyncio.sleep(RECONNECT.delay(failures, random.random, error))
            else:
                break

    def on_acquired(self, shard: str) -> None:
        """Serve a shard from now on."""
        _LOG.info("owning", extra=fields(shard=shard))
        self._count("gained", shard)
        self._changes.shard_acquired(shard)

    async def release(self, shard: str) -> None:
        """Release a shard: afterwards nothing of it is under way."""
        for stop in self._stop if shard != MANAGEMENT_SHARD else ():
            await stop(ClusterKey(shard))
        if shard != MANAGEMENT_SHARD:
            self._management.give_up(ClusterKey(shard))
        self._changes.shard_released(shard)
        _LOG.info("no longer owning", extra=fields(shard=shard))
        self._count("lost", shard)

    def _count(self, direction: str, shard: str) -> None:
        self._metrics.shard_move(direction, len(self._shards.held))
        if shard == MANAGEMENT_SHARD:
            self._metrics.leader(leads=direction == "gained")


def _remedy(error: ApiError) -> str:
    return REMEDY if isinstance(error, Forbidden) else "check the network to the management cluster"
