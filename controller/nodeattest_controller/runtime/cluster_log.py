"""The log lines about workload clusters: with the cluster's name, few from each, and one reporter of each connection.

A cluster's API server can cause lines without end: it may invent requests, refuse every write and break every watch.
Promises: a line that a cluster's tasks write has its name; of each cluster a few lines a minute are written, and one
says how many were left out; while a cluster does not answer, one reporter says so, less and less often, and the others'
lines about it are dropped. Lines of ``ALWAYS`` are written in any case.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from nodeattest_controller.logs import fields, fields_of
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.backoff import BackoffPolicy
from nodeattest_kube.errors import ApiError
from nodeattest_kube.rate_limiter import RateLimiter

__all__ = ["ALWAYS", "CURRENT_CLUSTER", "ClusterConnection", "ClusterLog"]

_LOG: Final = logging.getLogger(__name__)
CURRENT_CLUSTER: Final[ContextVar[str]] = ContextVar("cluster", default="")
"""The cluster that the running task works for, so that lines of libraries have its name."""
ALWAYS: Final = "nodeattest_always"
"""An attribute of records that no flood displaces: of certificates, and of those who limit themselves."""
BURST, RATE = 30, 1 / 10
"""Lines about one cluster at once, and a second after that."""
AGAIN: Final = BackoffPolicy(initial=60.0, cap=3600.0, jitter=0.0)
"""Between two lines that say that a cluster does not answer."""
HEALTHY: Final = 600.0
"""Seconds after which such lines begin anew."""


class ClusterLog(logging.Filter):
    """Limits the lines about workload clusters; one for all of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is monotonic seconds."""
        super().__init__()
        self.outages: dict[str, str] = {}
        """The reason of ``ApiError`` with which each cluster fails now."""
        self._lines = RateLimiter(burst=BURST, per_second=RATE, clock=clock)
        self._left_out: Counter[str] = Counter()

    @contextmanager
    def attached(self) -> Generator[None]:
        """Filter what the root's handlers write."""
        handlers = list(logging.getLogger().handlers)
        for handler in handlers:
            handler.addFilter(self)
        try:
            yield
        finally:
            self.report()
            for handler in handlers:
                handler.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Name the cluster of a record; return whether it is written. Several handlers ask once."""
        known = record.__dict__.get(_WRITTEN)
        if known is None:
            cluster = str(fields_of(record).get("cluster") or CURRENT_CLUSTER.get())
            if cluster:
                fields_of(record)["cluster"] = cluster
            known = record.__dict__[_WRITTEN] = not cluster or ALWAYS in record.__dict__ or self._take(cluster, record)
        return known

    def _take(self, cluster: str, record: logging.LogRecord) -> bool:
        outage = self.outages.get(cluster)
        if outage and any(outage in str(one) for one in (record.getMessage(), *fields_of(record).values())):
            return False
        if self._lines.take(cluster):
            return True
        self._left_out[cluster] += 1
        return False

    def report(self) -> None:
        """Say how many lines were left out since the last call."""
        left_out, self._left_out = self._left_out, Counter()
        for cluster, lines in left_out.items():
            more = fields(cluster=cluster, lines=lines)
            _LOG.warning("left out log lines about a cluster", extra=more | {ALWAYS: True})


class ClusterConnection:
    """Reports whether one workload cluster answers."""

    def __init__(
        self, log: ClusterLog, cluster: ClusterKey, server: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` is monotonic seconds."""
        self._log = log
        self._cluster = cluster
        self._server = server
        self._clock = clock
        self._connected = False
        """Whether the last line says so."""
        self._reports = 0
        self._again = float("-inf")
        """When it may be reported again that the cluster does not answer."""
        self._failed_at = float("-inf")

    def answered(self, error: ApiError | None) -> None:
        """Take in how a request ended: None if it was granted, else why it had no answer, or none for us (401)."""
        now = self._clock()
        if error is None:
            self._log.outages.pop(self._cluster, None)
            if not self._connected:
                self._connected = True
                self._write(logging.INFO, "connected")
            return
        if now - self._failed_at > HEALTHY:
            self._reports = 0
        self._failed_at = now
        self._log.outages[self._cluster] = error.reason
        if now >= self._again or not self._reports:
            self._connected = False
            self._reports += 1
            delay = AGAIN.delay(self._reports, lambda: 0.0, None)
            self._again = now + delay
            remedy = "check the kubeconfig in the Secret <cluster>-kubeconfig, the endpoint and the network"
            self._write(logging.WARNING, "cluster does not answer", error=str(error), next=delay, remedy=remedy)

    def close(self) -> None:
        """Forget it: nothing is sent any more."""
        self._log.outages.pop(self._cluster, None)
        self._write(logging.INFO, "disconnected")

    def _write(self, level: int, message: str, **more: object) -> None:
        extra = fields(cluster=self._cluster, server=self._server, **more) | {ALWAYS: True}
        _LOG.log(level, message, extra=extra)


_WRITTEN: Final = "nodeattest_written"
"""The attribute of a record that keeps the filter's answer."""
