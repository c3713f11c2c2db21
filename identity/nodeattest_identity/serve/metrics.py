"""Metrics of an issuer server."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from nodeattest_serving.health import CounterFunc, export_build_info

_STATUSES: Final = (
    HTTPStatus.OK,
    HTTPStatus.NOT_MODIFIED,
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.SERVICE_UNAVAILABLE,
)


class Metrics:
    """Counters in a registry of their own; no label's value comes from a request."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        export_build_info(self._registry)
        self._answers = Counter(
            "nodeattest_issuer_requests", "Responses by status.", ("code",), registry=self._registry
        )
        self._by_status = {status: self._answers.labels(str(status.value)) for status in _STATUSES}
        self._turned_away = CounterFunc(
            "nodeattest_issuer_connections_turned_away", "Connections over a limit.", registry=self._registry
        )
        self._reads = Counter(
            "nodeattest_issuer_reads",
            "Attempts to read an issuer's keys, by outcome.",
            ("issuer", "outcome"),
            registry=self._registry,
        )
        self._outcomes: dict[str, set[str]] = {}
        """Outcomes of each issuer that have a series."""
        self._read_at = Gauge(
            "nodeattest_issuer_keys_read_timestamp_seconds",
            "When an issuer's keys were last read.",
            ("issuer",),
            registry=self._registry,
        )
        self._keys = Gauge(
            "nodeattest_issuer_keys",
            "Keys that are served of an issuer; 0 if none.",
            ("issuer",),
            registry=self._registry,
        )

    def answered(self, status: HTTPStatus) -> None:
        """Count a response."""
        self._by_status[status].inc()

    def read(self, issuer: str, *, keys: int, at: float) -> None:
        """Count a successful read, at seconds since the epoch."""
        self._count(issuer, "read")
        self._read_at.labels(issuer).set(at)
        self._keys.labels(issuer).set(keys)

    def failed(self, issuer: str, outcome: str) -> None:
        """Count a failed read; ``outcome`` is of a closed set."""
        self._count(issuer, outcome)
        self._read_at.labels(issuer)
        self._keys.labels(issuer)

    def withdrawn(self, issuer: str) -> None:
        """Note that an issuer's documents are no longer served."""
        self._keys.labels(issuer).set(0)

    def forget(self, issuer: str) -> None:
        """Remove the series of an issuer."""
        outcomes = self._outcomes.pop(issuer, None)
        if outcomes is None:
            return
        for outcome in outcomes:
            self._reads.remove(issuer, outcome)
        self._read_at.remove(issuer)
        self._keys.remove(issuer)

    def _count(self, issuer: str, outcome: str) -> None:
        self._outcomes.setdefault(issuer, set()).add(outcome)
        self._reads.labels(issuer, outcome).inc()

    def watch_turned_away(self, read: Callable[[], int]) -> None:
        """Export the number of connections over the limit."""
        self._turned_away.set_function(read)

    def render(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)
