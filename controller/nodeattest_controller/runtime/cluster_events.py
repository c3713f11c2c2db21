"""What one controller reports about one cluster: log lines and Events on the Cluster, each once in a period.

An API server can cause what is not repeated, too: of one message it gets its share of lines (``cluster_log``), and the
next line says how many were left out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.runtime.cluster_log import BURST, RATE
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.objectref import cluster_ref
from nodeattest_kube.events import EventLimiter, EventRecorder, ObjectRef
from nodeattest_kube.rate_limiter import RateLimiter

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
        self._lines = RateLimiter(burst=BURST, per_second=RATE, clock=clock)
        self._left_out: Counter[str] = Counter()

    def allow(self, about: Hashable, period: float = PERIOD) -> bool:
        """Return whether a report is due; if so, it is not again within ``period`` seconds."""
        return self._limiter.allow(about, period)

    def info(self, message: str, **more: object) -> None:
        """Log what was done."""
        self._write(logging.INFO, message, more)

    def debug(self, message: str, **more: object) -> None:
        """Log what is no trouble yet."""
        self._log.debug(message, extra=fields(cluster=self.key, **more))

    def warn(self, about: Hashable | None, message: str, period: float = PERIOD, /, **more: object) -> bool:
        """Log trouble once in a period, or with None each time; returns whether it was due."""
        due = about is None or self.allow(about, period)
        if due:
            self._write(logging.WARNING, message, more)
        return due

    def _write(self, level: int, message: str, more: dict[str, object]) -> None:
        if not self._lines.take(message):
            self._left_out[message] += 1
            return
        if message in self._left_out:
            more = {**more, "left_out": self._left_out.pop(message)}
        self._log.log(level, message, extra=fields(cluster=self.key, **more))

    def event(self, kind: str, reason: str, message: str, *, on: ObjectRef | None = None) -> None:
        """Write an Event, on the Cluster unless another object is named."""
        if on is None:
            cluster = self._management.cluster(self.key)
            on = cluster_ref(cluster) if cluster is not None else None
        if on is not None:
            self._events.record(on, kind, reason, message)
