"""The base class of controllers that reconcile periodically, and after changes, in every connected cluster."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_controller import ClusterRunner
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerDeps:
    """What the controllers of all clusters are built with."""

    management: ManagementCache
    guard: ClusterGuard
    events: EventRecorder
    metrics: Metrics
    now: Callable[[], datetime]
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""


class ClusterReconciler(PeriodicReconciler, ABC):
    """A controller in one connected cluster that runs periodically and after changes (``ClusterRunner``)."""

    resync: ClassVar = ResyncConfig()

    def __init__(
        self, deps: ReconcilerDeps, key: ClusterKey, client: ApiClient, resync: ResyncConfig | None = None
    ) -> None:
        """``client`` is the workload cluster's."""
        super().__init__(self, resync or self.resync, clock=deps.clock)
        self._key, self._client = key, client
        self._management, self._guard, self._metrics = deps.management, deps.guard, deps.metrics
        self._now = deps.now
        log = logging.getLogger(type(self).__module__)
        self._events = ClusterEvents(key, deps.management, deps.events, log=log, clock=deps.clock)

    @abstractmethod
    async def reconcile(self) -> float | None:
        """Read and act; returns the seconds until the next run at the latest, None for the period. Raises ApiError."""

    @abstractmethod
    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Report the last of so many failures in a row; the next run starts after ``delay`` seconds."""


@dataclass(frozen=True, slots=True)
class ReconcilerFactory:
    """Makes the reconciler of each cluster (``ClusterController``)."""

    name: str
    make: Callable[[ClusterKey, ApiClient], ClusterRunner]

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> ClusterRunner:
        """Make the reconciler of one connection."""
        return self.make(key, client)
