"""Version and commit of this program as a metric, ``nodeattest_build_info``, the same in every server.

Source: the convention of Prometheus' own ``prometheus_build_info``: a gauge that is always 1.
"""

from __future__ import annotations

from functools import cache

from prometheus_client import CollectorRegistry, Gauge

from nodeattest_providers import __version__
from nodeattest_providers.build_commit import COMMIT, of_checkout

__all__ = ["export_build_info"]


def export_build_info(registry: CollectorRegistry) -> None:
    """Add the metric to a registry."""
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
