"""Metrics of a sidecar."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from nodeattest_identity.proxy.refusals import Refusal
from nodeattest_serving.metrics import CounterFunc, export_build_info

__all__ = ["Metrics"]

_CLASSES = {each: f"{each}xx" for each in range(1, 6)}


class Metrics:
    """Counters of one sidecar, in a registry of its own; no label's value comes from a request."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        export_build_info(self._registry)
        forwarded = Counter(
            "nodeattest_sidecar_forwarded",
            "Requests that were forwarded, by class of the response status.",
            ("code",),
            registry=self._registry,
        )
        refused = Counter(
            "nodeattest_sidecar_refused", "Requests that were refused, by reason.", ("reason",), registry=self._registry
        )
        self._forwarded = {each: forwarded.labels(name) for each, name in _CLASSES.items()}
        self._refused = {each: refused.labels(each.value) for each in Refusal}
        self._open = Gauge("nodeattest_sidecar_requests_open", "Requests in flight.", registry=self._registry)
        self._turned_away = CounterFunc(
            "nodeattest_sidecar_connections_turned_away", "Connections over the limit.", registry=self._registry
        )

    def forwarded(self, status: int) -> None:
        """Count a response of the add-on."""
        self._forwarded[min(max(status // 100, 1), 5)].inc()

    def refused(self, refusal: Refusal) -> None:
        """Count a refusal."""
        self._refused[refusal].inc()

    def watch(self, in_flight: Callable[[], int], turned_away: Callable[[], int]) -> None:
        """Export values that others count."""
        self._open.set_function(in_flight)
        self._turned_away.set_function(turned_away)

    def render(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)
