"""Metrics of a discovery front."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, generate_latest

from nodeattest_serving.metrics import CounterFunc, export_build_info

__all__ = ["Metrics"]


class Metrics:
    """Counters of one front, in a registry of its own; no label's value comes from a request."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        export_build_info(self._registry)
        self._answers = Counter(
            "nodeattest_discovery_requests",
            "Responses by service and status.",
            ("service", "code"),
            registry=self._registry,
        )
        self._turned_away = CounterFunc(
            "nodeattest_discovery_connections_turned_away", "Connections over a limit.", registry=self._registry
        )

    def answered(self, service: str, status: HTTPStatus) -> None:
        """Count a response."""
        self._answers.labels(service, str(status.value)).inc()

    def watch_turned_away(self, read: Callable[[], int]) -> None:
        """Export the number of connections over a limit."""
        self._turned_away.set_function(read)

    def render(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)
