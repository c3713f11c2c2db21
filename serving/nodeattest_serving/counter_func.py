"""A counter whose value somebody else counts, read when it is scraped: Prometheus' ``CounterFunc`` in Go.

prometheus_client has this for gauges only (``Gauge.set_function``), and a gauge's name must not end with ``_total``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

__all__ = ["CounterFunc"]


class CounterFunc(Collector):
    """A counter without labels, which shows 0 until ``read`` is set."""

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
