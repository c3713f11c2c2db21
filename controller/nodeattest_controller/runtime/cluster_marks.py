"""Marks each Cluster that this controller serves, so that no other one serves it at the same time.

Promises: a Cluster is served only after our mark was written by compare-and-swap, or found; another's mark is never
replaced. Ours is removed after all work in the cluster has ended. Before a Cluster is marked, the records that its
former controller wrote are in the cache: a check across machines (a key or name that another machine has) holds when a
Cluster moves.
Leaves to others: which Clusters are wanted (``guard``), connecting and ending (``cluster_manager``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.model.cluster_mark import SERVED, mark_of, mark_text, watch_filter_of
from nodeattest_controller.runtime.cluster_events import PERIOD
from nodeattest_controller.runtime.conditions import (
    Condition,
    ConditionStatus,
    update_status,
    with_condition,
    without_condition,
)
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import cluster_path, cluster_ref
from nodeattest_kube.client import NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["ANOTHER", "ClusterMarks"]

log = logging.getLogger(__name__)
ANOTHER: Final = "ServedByAnotherController"
"""The reason of the Event."""


class ClusterMarks:
    """The marks of one controller."""

    def __init__(
        self,
        management: ManagementCache,
        *,
        controller: str,
        watch_filter: str | None,
        events: EventRecorder,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take part as ``controller``, the same name for all replicas; ``clock`` is monotonic seconds."""
        self._management = management
        self._controller = controller
        self._watch_filter = watch_filter or ""
        self._events = events
        self._now = now
        self._limiter = EventLimiter(clock)

    def is_ours(self, cluster: JsonObject) -> bool:
        """Return whether a Cluster has our mark."""
        return mark_of(cluster) == self._controller

    def may_serve(self, cluster: JsonObject) -> bool:
        """Return whether a Cluster has our label, and no other controller's mark."""
        return watch_filter_of(cluster) == self._watch_filter and mark_of(cluster) in {"", self._controller}

    def report_conflict(self, cluster: JsonObject) -> None:
        """Tell, once in ten minutes, of a Cluster with our label that another controller serves."""
        ref, mark = cluster_ref(cluster), mark_of(cluster)
        if watch_filter_of(cluster) != self._watch_filter or self.may_serve(cluster):
            return
        if self._limiter.allow((ref.uid, mark), PERIOD):
            name = f"{ref.namespace}/{ref.name}"
            log.warning("another controller serves this cluster", extra=fields(cluster=name, controller=mark))
            message = f"{mark} serves this Cluster, so {self._controller} does not; docs/scale.md says how to move it"
            self._events.record(ref, "Warning", ANOTHER, message)

    async def claim(self, key: ClusterKey, cluster: JsonObject) -> None:
        """Mark a Cluster that ``may_serve`` allows; raises ApiError, Conflict when somebody wrote it meanwhile."""
        if self.is_ours(cluster):
            return
        await self._management.check_ledgers(key)
        mark = Condition(SERVED, ConditionStatus.TRUE, "Serving", mark_text(self._controller))
        patch = with_condition(cluster, mark, self._now())
        if patch is not None:
            await self._management.client.merge_patch(f"{cluster_path(cluster)}/status", patch)

    async def release(self, cluster: JsonObject) -> None:
        """Remove our mark, if there is one; raises ApiError."""
        if not self.is_ours(cluster):
            return

        def without_ours(current: JsonObject) -> JsonObject | None:
            return without_condition(current, SERVED) if self.is_ours(current) else None

        try:
            await update_status(self._management.client, cluster_path(cluster), cluster, without_ours)
        except NotFound:
            return
