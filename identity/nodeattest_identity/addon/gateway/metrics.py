"""Metrics of a gateway."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from nodeattest_serving.health import CounterFunc, export_build_info


class Metrics:
    """Counters of one gateway, in a registry of its own; no label's value comes from a request."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        export_build_info(self._registry)
        self._answers = Counter(
            "nodeattest_addon_gateway_requests",
            "Responses by kind of request (proxy, discovery, issuer) and status.",
            ("what", "code"),
            registry=self._registry,
        )
        self._minted = CounterFunc("nodeattest_addon_gateway_tokens_minted", "Tokens signed.", registry=self._registry)
        self._open = Gauge("nodeattest_addon_gateway_requests_open", "Requests in flight.", registry=self._registry)
        self._keys = Gauge("nodeattest_addon_gateway_keys", "Published keys.", registry=self._registry)

    def answered(self, what: str, status: int) -> None:
        """Count a response."""
        self._answers.labels(what, str(status)).inc()

    def watch(self, *, minted: Callable[[], int], open_now: Callable[[], int], keys: Callable[[], int]) -> None:
        """Export values that others count."""
        self._minted.set_function(minted)
        self._open.set_function(open_now)
        self._keys.set_function(keys)

    def render(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)
