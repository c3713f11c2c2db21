"""Metrics of work queues under client-go's names, so that dashboards of other controllers fit.

Source: k8s.io/component-base/metrics/prometheus/workqueue. Its buckets begin at 10 ns, ours at
100 µs.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nodeattest_kube.workqueue import QueueMetrics

__all__ = ["WorkQueueMetrics"]

_BUCKETS: Final = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""Seconds; powers of ten, as client-go's."""


class WorkQueueMetrics:
    """The families; ``named`` gives a queue its series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._depth = Gauge("workqueue_depth", "Keys waiting for a worker.", ("name",), registry=registry)
        self._adds = Counter("workqueue_adds", "Keys that began to wait.", ("name",), registry=registry)
        self._retries = Counter(
            "workqueue_retries", "Keys that were added with back-off.", ("name",), registry=registry
        )
        self._waited = Histogram(
            "workqueue_queue_duration_seconds",
            "How long keys waited for a worker.",
            ("name",),
            registry=registry,
            buckets=_BUCKETS,
        )
        self._worked = Histogram(
            "workqueue_work_duration_seconds",
            "How long workers had a key.",
            ("name",),
            registry=registry,
            buckets=_BUCKETS,
        )

    def named(self, name: str) -> QueueMetrics:
        """Return what counts for a queue, or for several that are shown as one."""
        return _Queue(
            depth=self._depth.labels(name),
            adds=self._adds.labels(name),
            retries=self._retries.labels(name),
            waited=self._waited.labels(name),
            worked=self._worked.labels(name),
        )


class _Queue:
    def __init__(self, *, depth: Gauge, adds: Counter, retries: Counter, waited: Histogram, worked: Histogram) -> None:
        self._depth = depth
        self._adds = adds
        self._retries = retries
        self._waited = waited
        self._worked = worked

    def added(self) -> None:
        self._depth.inc()
        self._adds.inc()

    def retried(self) -> None:
        self._retries.inc()

    def taken(self, waited: float) -> None:
        self._depth.dec()
        self._waited.observe(max(0.0, waited))

    def done(self, worked: float) -> None:
        self._worked.observe(max(0.0, worked))

    def dropped(self, count: int) -> None:
        self._depth.dec(count)
