"""Write docs/metrics.md from the metrics that the servers register: ``python -m tools.metrics_reference FILE``.

What is before the first server's section stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from nodeattest_controller.metrics import Metrics as Controller
from nodeattest_discovery.front.service import Metrics as Front
from nodeattest_identity.addon.gateway.service import Metrics as Gateway
from nodeattest_identity.addon.sidecar.service import Metrics as Sidecar
from nodeattest_identity.serve import Metrics as Issuer
from tools.markdown_tables import rewrite

SERVERS: Final = {
    "node-attestation-controller": Controller,
    "nodeattest issuer serve": Issuer,
    "nodeattest discovery serve": Front,
    "nodeattest addon-auth gateway": Gateway,
    "nodeattest addon-auth sidecar": Sidecar,
}
_OURS: Final = ("nodeattest_", "workqueue_", "rest_client_")
"""Not those of the process; the last two are client-go's names."""
_SUFFIXES: Final = {
    "histogram": ("_bucket", "_sum", "_count"),
    "gaugehistogram": ("_bucket", "_gsum", "_gcount"),
    "counter": ("_total",),
}
"""Of the series of a family; others have the family's name."""


@dataclass(frozen=True, slots=True)
class Row:
    """One family as it is registered."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def series(self) -> tuple[str, ...]:
        """Names that a query uses."""
        return tuple(f"{self.name}{suffix}" for suffix in _SUFFIXES.get(self.kind, ("",)))

    @property
    def shown(self) -> str:
        """Name and labels; of a histogram without ``le``."""
        name = self.series[0] if self.kind == "counter" else self.name
        return f"{name}{{{','.join(self.labels)}}}" if self.labels else name


def rows(server: str) -> Iterator[Row]:
    """Yield the families of one server, in the order of their registration."""
    made = vars(SERVERS[server]())
    registry: CollectorRegistry = made.get("registry") or made["_registry"]  # some servers show text only
    collectors: Mapping[Collector, object] = vars(registry)["_collector_to_names"]
    for collector in collectors:
        for family in collector.collect():  # a family without series shows its labels nowhere but in these attributes
            labels: tuple[str, ...] = getattr(family, "_labelnames", None) or getattr(collector, "_labelnames", ())
            if family.name.startswith(_OURS):
                yield Row(family.name, family.type, labels, family.documentation)


def series_names() -> frozenset[str]:
    """Return every name that a query may use, of all servers."""
    return frozenset(name for server in SERVERS for row in rows(server) for name in row.series)


def markdown(before: str) -> str:
    """Write the page anew."""
    parts = [before.partition("\n## ")[0].rstrip()]
    for server in SERVERS:
        table = ["| metric | type | meaning |", "|---|---|---|"]
        table += [f"| `{row.shown}` | {row.kind} | {row.text} |" for row in rows(server)]
        parts += [f"## {server}", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    rewrite(markdown, __doc__)
