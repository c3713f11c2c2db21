"""What the metrics of every server have in common: version and commit, and counters that somebody else counts.

Source: the convention of Prometheus' own ``prometheus_build_info`` (a gauge that is always 1), and ``CounterFunc`` in
its library for Go: prometheus_client has that for gauges only, and a gauge's name must not end with ``_total``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from nodeattest_providers import __version__
from nodeattest_providers.build_commit import COMMIT, of_checkout

__all__ = ["CounterFunc", "export_build_info"]


class CounterFunc(Collector):
    """A counter without labels, which shows 0 until ``set_function`` was called."""

    def __init__(self, name: str, documentation: str, *, registry: CollectorRegistry) -> None:
        """``name`` is without ``_total``."""
        self._name = name
        self._documentation = documentation
        self._read: Callable[[], int] = int
        registry.register(self)

    def set_function(self, read: Callable[[], int]) -> None:
        """Read the value here from now on; it must never fall."""
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Make the family."""
        yield CounterMetricFamily(self._name, self._documentation, value=self._read())


def export_build_info(registry: CollectorRegistry) -> None:
    """Add the metric ``nodeattest_build_info`` to a registry."""
    gauge = Gauge(
        "nodeattest_build_info",
        "Always 1; version and commit of this program.",
        ("version", "commit"),
        registry=registry,
    )
    gauge.labels(__version__, _commit()).set(1)


@cache
def _commit() -> str:
    return COMMIT or of_checkout()
