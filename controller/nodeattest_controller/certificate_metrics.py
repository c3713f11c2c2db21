"""How the machines of each cluster are attested, and when their certificates end, in Prometheus' words.

Promises: six states, one earliest end and one lifetime a cluster; remaining lifetimes are one histogram of the whole
fleet. A cluster's series go with it. Leaves to others: what is counted (``node_attested.machine_census``).
Source: prometheus.io/docs/practices/naming (times are timestamps in seconds, and an alert subtracts).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final

from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

__all__ = ["REMAINING_BUCKETS", "CertificateMetrics", "ClusterCertificates", "MachineState", "counts_of_remaining"]

_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR
REMAINING_BUCKETS: Final = (
    *(0.0, _HOUR, 4 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 4 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY, 90 * _DAY),
)
"""Seconds; the first has those that ended, and beside these there is one for longer ones."""


class MachineState(StrEnum):
    """How a machine is attested; the reasons of the condition ``NodeAttested``, refusals taken together."""

    ATTESTED = "attested"
    REFUSED = "refused"
    """The last request of its own node was refused; its certificate is still good."""
    EXPIRED = "expired"
    RESET = "reset"
    NOT_ATTESTED = "not_attested"
    """Its node joined without attestation."""
    PENDING = "pending"
    """It did not join yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCertificates:
    """What is shown of one cluster."""

    states: Mapping[MachineState, int]
    earliest_end: float | None
    """Seconds since the epoch, of the certificates that are still good."""
    earliest_lifetime: float
    """Seconds, of the same certificate."""
    remaining: tuple[int, ...]
    """Certificates by bucket: one more than ``REMAINING_BUCKETS``, not accumulated."""
    remaining_sum: float
    """Seconds."""


def counts_of_remaining(seconds: Iterable[float]) -> tuple[int, ...]:
    """Count certificates by the bucket that their remaining seconds fall into; each bound is inclusive."""
    counts = [0] * (len(REMAINING_BUCKETS) + 1)
    for each in seconds:
        counts[bisect_left(REMAINING_BUCKETS, each)] += 1
    return tuple(counts)


class CertificateMetrics(Collector):
    """The newest figures of each cluster."""

    def __init__(self) -> None:
        self._clusters: dict[str, ClusterCertificates] = {}

    def show(self, key: str, found: ClusterCertificates) -> None:
        """Replace the figures of a cluster, ``namespace/name``."""
        self._clusters[key] = found

    def forget(self, key: str) -> None:
        """Drop those of a cluster that is gone."""
        self._clusters.pop(key, None)

    def collect(self) -> Iterator[GaugeMetricFamily | GaugeHistogramMetricFamily]:
        """Make the families."""
        machines = GaugeMetricFamily(
            "nodeattest_machines",
            "Machines by how they are attested: attested, refused (a renewal was), expired, reset, not_attested "
            "(joined without attestation), pending (did not join yet).",
            labels=("cluster", "state"),
        )
        end = GaugeMetricFamily(
            "nodeattest_certificate_earliest_end_timestamp_seconds",
            "When the first of the cluster's client certificates ends, of those that are still good.",
            labels=("cluster",),
        )
        lifetime = GaugeMetricFamily(
            "nodeattest_certificate_earliest_lifetime_seconds",
            "The whole lifetime of that certificate.",
            labels=("cluster",),
        )
        for key, found in self._clusters.items():
            for state in MachineState:
                machines.add_metric((key, state), found.states.get(state, 0))
            if found.earliest_end is not None:
                end.add_metric((key,), found.earliest_end)
                lifetime.add_metric((key,), found.earliest_lifetime)
        yield from (machines, end, lifetime, self._remaining())

    def _remaining(self) -> GaugeHistogramMetricFamily:
        counts = [sum(column) for column in zip(*(each.remaining for each in self._clusters.values()), strict=True)]
        bounds = (*(str(bound) for bound in REMAINING_BUCKETS), "+Inf")
        return GaugeHistogramMetricFamily(
            "nodeattest_certificate_remaining_seconds",
            'Remaining lifetimes of the newest client certificate of each machine, all clusters together; le="0.0" are '
            "those that ended. A histogram of now, not of events: use it without rate().",
            buckets=list(zip(bounds, accumulate(counts or [0] * len(bounds)), strict=True)),
            gsum_value=sum(each.remaining_sum for each in self._clusters.values()),
        )
