"""Clocks: of both API servers, of the controller and of this machine. Pure.

A certificate begins five minutes before it is signed, so a clock that is off by more makes certificates that are not
valid yet; less is told early.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity
from nodeattest_cli.doctor.renewals import TOLERATED, leader_leases, writer_ahead
from nodeattest_controller.model.certificate_authority import BACKDATE

__all__ = ["IDS", "look"]

IDS: Final = ("local-clock", "controller-clock", "workload-clock")
_REMEDY: Final = "synchronize the clocks (NTP)"


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Compare each clock with the management cluster's API server."""
    ahead = facts.management.ahead
    if ahead is not None:
        yield _finding("local-clock", "this machine's clock", -ahead, most=HealthSeverity.WARNING)
    measured = [off for lease in leader_leases(facts) if (off := writer_ahead(facts, lease)) is not None]
    if measured:
        yield _finding("controller-clock", "the controller's clock", max(measured, key=abs))
    for key, workload in facts.workloads.items():
        if workload.ahead is not None:
            yield _finding("workload-clock", "the workload cluster's clock", workload.ahead, key)


def _finding(
    name: str, whose: str, ahead: float, cluster: str = "", *, most: HealthSeverity = HealthSeverity.ERROR
) -> HealthFinding:
    severity = HealthSeverity.OK
    if abs(ahead) > TOLERATED:
        severity = most if abs(ahead) > BACKDATE.total_seconds() else HealthSeverity.WARNING
    way = "ahead" if ahead >= 0 else "behind"
    return HealthFinding(
        id=name,
        severity=severity,
        expected=f"{whose} is within {TOLERATED:g} s of the management cluster's",
        found=f"{abs(ahead):.0f} s {way}" if severity is not HealthSeverity.OK else f"within {TOLERATED:g} s",
        remedy="" if severity is HealthSeverity.OK else _REMEDY,
        cluster=cluster,
    )
