"""Clusters shared out among replicas: each opted-in Cluster is a shard, and what is of no one cluster is one more.

Promises: a cluster is served only while its Lease is ours, and after the ledgers that its last owner wrote are in our
cache; it is given up only when nothing of it is under way any more. So what is checked across machines in memory (a key
or a name that another machine has) holds over a move.
Leaves to others: the Leases (``nodeattest_kube.shard_elector``), connecting and ending (``fleet``).
Source: ADR 0027.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient, ApiError, Forbidden
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.shard_elector import ShardElector
from nodeattest_kube.shard_leases import ShardGroup

__all__ = ["GROUP_IDENTITY", "MANAGEMENT", "ShardManager"]

_LOG: Final = logging.getLogger(__name__)
MANAGEMENT: Final = "management"
"""The shard of what is of no one cluster; no Cluster can have this name, which lacks a namespace."""
GROUP_IDENTITY: Final = "shared-among-replicas"
"""Who holds the leader's Lease while clusters are shared: all replicas together, so that none leads beside them."""
REMEDY: Final = "apply manifests/sharding in the management cluster, or take --shard-clusters away"
LOOK_PERIOD: Final = 1.0
"""Seconds between two looks at whether something is wrong; nobody is asked for it."""
TROUBLE_PERIOD: Final = 60.0
"""Seconds between two lines about it."""
RETRY: Final = 2.0
"""Seconds until the ledgers are compared again that an API server would not show."""


class ShardManager:
    """One replica's part of the clusters (``Ownership``, ``ShardHost``)."""

    def __init__(
        self,
        settings: Settings,
        leases: ApiClient,
        management: ManagementCache,
        *,
        metrics: Metrics,
        may_act: Callable[[], bool],
        begun: Callable[[ClusterKey], None],
        stop: Callable[[ClusterKey], Awaitable[None]],
    ) -> None:
        """``leases`` is a client that may send when we may not act; ``stop`` ends all work in a cluster."""
        self._management = management
        self._metrics = metrics
        self._may_act = may_act
        self._begun, self._stop = begun, stop
        self._wanted: frozenset[str] | None = None
        self._joined = False
        group = ShardGroup(settings.namespace, settings.lease_name)
        self._leases = Reflector(leases, group.collection, query=group.query, on_change=self._told)
        self._shards = ShardElector(
            leases,
            self._leases,
            self,
            group=group,
            identity=settings.identity,
            lease_duration=settings.lease_duration,
            renew_deadline=settings.renew_deadline,
            retry_period=settings.retry_period,
        )

    # Ownership

    def owns(self, cluster: ClusterKey) -> bool:
        """Tell whether this replica serves the cluster now."""
        return self._may_act() and self._shards.owns(cluster)

    def owns_management(self) -> bool:
        """Tell whether what is of no one cluster is ours now."""
        return self._may_act() and self._shards.owns(MANAGEMENT)

    def may_write(self) -> bool:
        """Tell whether this replica may still send anything: False for ever once its own Lease has run out."""
        return self._may_act() and (self._shards.is_member or not self._joined)

    @property
    def trouble(self) -> ApiError | None:
        """What keeps this replica from taking its part; None while all is well."""
        return self._shards.last_error or self._leases.last_error

    def changed(self) -> None:
        """Hear that a Cluster or a policy changed, and with it perhaps which clusters there are to serve."""
        self._wanted = None
        self._shards.wake()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Take part while ``work`` runs; raises LostLease, perhaps in a group, when this replica may not act on."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._leases.run()), tasks.create_task(self._tell_of_trouble())]
            await self._shards.run(lambda: self._joined_by(work))
            for task in beside:
                task.cancel()

    async def _joined_by(self, work: Callable[[], Awaitable[None]]) -> None:
        self._joined = True
        await work()

    async def _tell_of_trouble(self) -> None:
        """Log what keeps this replica from its part, once a minute while it lasts."""
        while True:
            trouble = self.trouble
            if trouble is not None:
                remedy = REMEDY if isinstance(trouble, Forbidden) else "check the network to the management cluster"
                _LOG.warning("cannot share clusters", extra=fields(error=str(trouble), remedy=remedy))
            await asyncio.sleep(LOOK_PERIOD if trouble is None else TROUBLE_PERIOD)

    def _told(self, _name: str, _lease: JsonObject | None) -> None:
        self._shards.wake()

    # ShardHost

    def wanted(self) -> frozenset[str]:
        """Name the shards: every opted-in Cluster, and the management cluster's own."""
        if self._wanted is None:
            self._wanted = frozenset({MANAGEMENT, *self._management.opted_in_clusters()})
        return self._wanted

    async def acquire(self, shard: str) -> None:
        """Take over a shard once the cache holds what its last owner wrote."""
        while shard != MANAGEMENT:
            try:
                await self._management.await_ledgers(ClusterKey(shard))
            except ApiError as error:
                _LOG.warning("cannot compare the ledgers of a cluster", extra=fields(cluster=shard, error=str(error)))
                await asyncio.sleep(RETRY)
            else:
                break

    def on_acquired(self, shard: str) -> None:
        """Serve a shard from now on."""
        _LOG.info("owning", extra=fields(shard=shard))
        self._tell("gained", shard)
        if shard != MANAGEMENT:
            self._begun(ClusterKey(shard))

    async def release(self, shard: str) -> None:
        """Give a shard up: afterwards nothing of it is under way."""
        if shard != MANAGEMENT:
            await self._stop(ClusterKey(shard))
        _LOG.info("no longer owning", extra=fields(shard=shard))
        self._tell("lost", shard)

    def _tell(self, direction: str, shard: str) -> None:
        self._metrics.shard_move(direction, len(self._shards.held))
        if shard == MANAGEMENT:
            self._metrics.leader(leads=direction == "gained")
