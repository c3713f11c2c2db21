"""One finding of ``nodeattest doctor``, and what a list of findings amounts to. Pure.

Promises: ids and the JSON form are stable (docs/doctor.md); a finding that is not ok says what was expected, what was
found and what to do. Findings hold what objects say: whoever prints them makes that printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nodeattest_cli.errors import ExitCode
from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["HealthFinding", "HealthSeverity", "counts", "exit_code", "listed", "to_document", "worst"]

_SHOWN: Final = 8
"""Names that a finding lists."""


class HealthSeverity(StrEnum):
    """How bad it is; the order is that of the worst first."""

    ERROR = "error"
    UNKNOWN = "unknown"
    """It could not be looked at: ``found`` says why."""
    WARNING = "warning"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """One thing that was looked at."""

    id: str
    severity: HealthSeverity
    expected: str
    found: str
    remedy: str = ""
    """What to do; empty where nothing is."""
    cluster: str = ""
    """``namespace/name`` of the workload cluster; empty: the management cluster, or all."""

    def to_json(self) -> JsonObject:
        """Return the entry of ``findings``."""
        return {
            "id": self.id,
            "severity": str(self.severity),
            "cluster": self.cluster or None,
            "expected": self.expected,
            "found": self.found,
            "remedy": self.remedy or None,
        }


def worst(findings: Iterable[HealthFinding]) -> HealthSeverity:
    """Return the worst severity of all; of none, ok."""
    found = {one.severity for one in findings}
    return next((severity for severity in HealthSeverity if severity in found), HealthSeverity.OK)


def counts(findings: Sequence[HealthFinding]) -> dict[HealthSeverity, int]:
    """Count the findings of each severity."""
    return {severity: sum(one.severity is severity for one in findings) for severity in HealthSeverity}


def exit_code(findings: Iterable[HealthFinding]) -> ExitCode:
    """Say how the command ends: 1 for an error, 3 where something could not be looked at, 0 otherwise."""
    match worst(findings):
        case HealthSeverity.ERROR:
            return ExitCode.REFUSED
        case HealthSeverity.UNKNOWN:
            return ExitCode.NO_ACCESS
        case HealthSeverity.WARNING | HealthSeverity.OK:
            return ExitCode.DONE


def to_document(findings: Sequence[HealthFinding]) -> JsonObject:
    """Return what ``-o json`` prints."""
    numbers: JsonObject = {str(severity): number for severity, number in counts(findings).items()}
    entries: list[JsonValue] = [one.to_json() for one in findings]
    return {"severity": str(worst(findings)), "counts": numbers, "findings": entries}


def listed(names: Iterable[str]) -> str:
    """Name the first of several, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
