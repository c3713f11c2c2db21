"""Says on a Cluster that its kubeconfig is refused, and why: a condition, and an Event every ten minutes.

A name that resolves to other addresses all the time leads to two writes a minute at most. Leaves to others: what is
refused (``cluster_manager``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.runtime.cluster_log import PERIOD
from nodeattest_controller.runtime.conditions import (
    Condition,
    ConditionStatus,
    Severity,
    remove_condition,
    set_condition,
)
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import cluster_path, cluster_ref
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_kube.events import EventLimiter, EventRecorder
from nodeattest_kube.workqueue import QueueMetrics, WorkQueue
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject

_LOG: Final = logging.getLogger(__name__)
ACCEPTED: Final = "KubeconfigAccepted"
"""The condition's type."""
REFUSED: Final = "KubeconfigRefused"
"""Its reason, and the Event's."""
_GAP: Final = 60.0
"""Seconds between two times that the same is said of a Cluster."""
_WORKERS: Final = 4


@dataclass(frozen=True, slots=True)
class _Said:
    """What a Cluster's condition is to say."""

    uid: str
    expected: str
    """Empty where nothing is refused."""
    why: str
    until: float
    """When to compare again."""


class KubeconfigStatus:
    """Keeps the condition of every Cluster that this replica serves."""

    def __init__(
        self,
        management: ManagementCache,
        *,
        guard: ClusterGuard,
        events: EventRecorder,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
        queue_metrics: QueueMetrics | None = None,
    ) -> None:
        """``clock`` is monotonic seconds."""
        self._management = management
        self._guard = guard
        self._events = events
        self._now = now
        self._clock = clock
        self._queue: WorkQueue[ClusterKey] = WorkQueue(metrics=queue_metrics)
        self._said: dict[ClusterKey, _Said] = {}
        self._limiter = EventLimiter(clock)

    def refused(self, key: ClusterKey, expected: str, why: str) -> None:
        """Say it; ``expected`` is one of few texts, ``why`` the whole message."""
        cluster = self._management.cluster(key)
        if cluster is not None and self._limiter.allow((key, expected, REFUSED), PERIOD):
            self._events.record(cluster_ref(cluster), "Warning", REFUSED, why)
        self._say(key, expected, why)

    def not_refused(self, key: ClusterKey) -> None:
        """Take it back, where it was said: the kubeconfig is accepted, or nobody asks for it any more."""
        self._say(key, "", "")

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            await self._queue.run(self._reconcile, _WORKERS)
        except asyncio.CancelledError:
            self._queue.shut_down()
            raise

    def _say(self, key: ClusterKey, expected: str, why: str) -> None:
        cluster = self._management.cluster(key)
        if cluster is None:
            self._forget(key)
            return
        known, uid, now = self._said.get(key), text(cluster, "metadata", "uid"), self._clock()
        if known is not None and (known.uid, known.expected) == (uid, expected) and now < known.until:
            return
        if self._limiter.allow((key, uid, expected), _GAP):
            self._said[key] = _Said(uid, expected, why, now + PERIOD)
            self._queue.add(key)

    async def _reconcile(self, key: ClusterKey) -> None:
        said, cluster = self._said.get(key), self._guard.active_cluster(key)
        if said is None or cluster is None:
            self._forget(key)
            self._queue.forget(key)
            return
        try:
            await self._write(cluster, said)
        except NotFound:
            self._forget(key)
        except ApiError as error:
            if self._limiter.allow((key, ApiError), PERIOD):
                _LOG.warning("cannot write a Cluster's condition", extra=fields(cluster=key, error=str(error)))
            self._queue.retry(key, error)
            return
        self._queue.forget(key)

    async def _write(self, cluster: JsonObject, said: _Said) -> None:
        client, path = self._management.client, cluster_path(cluster)
        if said.expected:
            refused = Condition(ACCEPTED, ConditionStatus.FALSE, REFUSED, said.why, Severity.ERROR)
            await set_condition(client, path, cluster, refused, self._now)
        else:  # read now: the cache may not have what was written from here a moment ago
            await remove_condition(client, path, await client.get(path), ACCEPTED)

    def _forget(self, key: ClusterKey) -> None:
        self._said.pop(key, None)
