"""What a gateway counts."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

__all__ = ["Metrics"]


class Metrics:
    """Counters of one gateway, in a registry of its own; no label's value comes from a request."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._answers = Counter(
            "nodeattest_addon_gateway_requests",
            "Answers by what was asked for (proxy, discovery, issuer) and status.",
            ("what", "code"),
            registry=self._registry,
        )
        self._minted = Gauge("nodeattest_addon_gateway_tokens_minted", "Tokens signed.", registry=self._registry)
        self._open = Gauge("nodeattest_addon_gateway_requests_open", "Requests now.", registry=self._registry)
        self._keys = Gauge("nodeattest_addon_gateway_keys", "Keys that are published.", registry=self._registry)

    def answered(self, what: str, status: int) -> None:
        """Count an answer."""
        self._answers.labels(what, str(status)).inc()

    def watch(self, *, minted: Callable[[], int], open_now: Callable[[], int], keys: Callable[[], int]) -> None:
        """Show what others count."""
        self._minted.set_function(minted)
        self._open.set_function(open_now)
        self._keys.set_function(keys)

    def render(self) -> bytes:
        """Write the exposition."""
        return generate_latest(self._registry)
