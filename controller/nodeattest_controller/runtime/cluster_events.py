"""What one controller reports about one cluster: log lines and Events on the Cluster, each once in a period."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import cluster_ref
from nodeattest_kube.events import EventLimiter, EventRecorder, ObjectRef

__all__ = ["PERIOD", "ClusterEvents"]

PERIOD: Final = 600.0
"""Seconds between two reports of the same trouble."""


class ClusterEvents:
    """Log and Events of one controller about one cluster."""

    def __init__(
        self,
        key: ClusterKey,
        management: ManagementCache,
        events: EventRecorder,
        *,
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        """``log`` is the controller's logger, ``clock`` monotonic seconds."""
        self.key = key
        self._management = management
        self._events = events
        self._log = log
        self._limiter = EventLimiter(clock)

    def allow(self, about: Hashable, period: float = PERIOD) -> bool:
        """Return whether a report is due; if so, it is not again within ``period`` seconds."""
        return self._limiter.allow(about, period)

    def info(self, message: str, **more: object) -> None:
        """Log what was done."""
        self._log.info(message, extra=fields(cluster=self.key, **more))

    def debug(self, message: str, **more: object) -> None:
        """Log what is no trouble yet."""
        self._log.debug(message, extra=fields(cluster=self.key, **more))

    def warn(self, about: Hashable | None, message: str, period: float = PERIOD, /, **more: object) -> bool:
        """Log trouble once in a period, or with None each time; returns whether it was due."""
        due = about is None or self.allow(about, period)
        if due:
            self._log.warning(message, extra=fields(cluster=self.key, **more))
        return due

    def event(self, kind: str, reason: str, message: str, *, on: ObjectRef | None = None) -> None:
        """Write an Event, on the Cluster unless another object is named."""
        if on is None:
            cluster = self._management.cluster(self.key)
            on = cluster_ref(cluster) if cluster is not None else None
        if on is not None:
            self._events.record(on, kind, reason, message)
