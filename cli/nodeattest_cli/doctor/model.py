"""One finding of ``nodeattest doctor``, and what a list of findings amounts to. Pure.

Promises: ids and the JSON form are stable (docs/monitor.md#doctor); a finding that is not ok says what was expected,
what was found and what to do. Findings hold what objects say: whoever prints them makes that printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nodeattest_cli.errors import ExitCode
from nodeattest_parsing.values import JsonObject

_MAX_LISTED: Final = 8
"""Names that a finding lists."""
GROUPS: Final = {
    "move": ("move-source", "move-namespace"),
    "versions": ("management-version", "workload-version", "cluster-api-version", "controller-version"),
    "definitions": ("definitions-served", "definitions-of-release"),
    "controller": ("controller-leader", "cluster-reachable"),
    "rights": ("management-rights", "challenge-secrets-policy", "workload-rights"),
    "webhook": ("webhook-configuration", "webhook-ca", "webhook-endpoints", "webhook-answers"),
    "policies": (
        *("policies-valid", "policies-providers", "policies-accepted", "policies-overlap"),
        "clusters-without-policy",
    ),
    "automatic approval": ("automatic-approval",),
    "bootstrap": ("bootstrap-data", "bootstrap-refused", "bootstrap-tokens"),
    "machines": ("machines-attested", "certificates"),
    "clocks": ("local-clock", "controller-clock", "workload-clock"),
}
"""Ids of findings by the title under which they are shown, in order."""
IDS: Final = tuple(name for names in GROUPS.values() for name in names)


class HealthSeverity(StrEnum):
    """How bad it is, the worst first."""

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


def make_finding(
    name: str,
    expected: str,
    ok: str,
    *,
    errors: Sequence[str] = (),
    unknown: Sequence[str] = (),
    warnings: Sequence[str] = (),
    also: Sequence[str] = (),
    remedy: str = "",
    cluster: str = "",
) -> HealthFinding:
    """Make a finding: as bad as the worst that was found, ``ok`` where nothing was; ``also`` follows what was found."""
    by_severity = zip(HealthSeverity, (errors, unknown, warnings, [ok]), strict=True)
    severity = next((severity for severity, said in by_severity if said), HealthSeverity.OK)
    found = "; ".join([*errors, *unknown, *warnings, *also]) or ok
    remedy = "" if severity is HealthSeverity.OK else remedy
    return HealthFinding(id=name, severity=severity, expected=expected, found=found, remedy=remedy, cluster=cluster)


def not_looked_at(name: str, why: str, cluster: str = "") -> HealthFinding:
    """Make the finding for what this user may not read, or what did not answer."""
    expected, remedy = "this user can read it", "let this user read it (docs/monitor.md#doctor, Rights)"
    return make_finding(name, expected, "", unknown=[why], remedy=remedy, cluster=cluster)


def counts(findings: Sequence[HealthFinding]) -> dict[HealthSeverity, int]:
    """Count the findings of each severity, the worst first."""
    return {severity: sum(one.severity is severity for one in findings) for severity in HealthSeverity}


def _worst(findings: Sequence[HealthFinding]) -> HealthSeverity:
    return next((severity for severity, number in counts(findings).items() if number), HealthSeverity.OK)


def exit_code(findings: Sequence[HealthFinding]) -> ExitCode:
    """Return the exit code: 1 for an error, 3 where something could not be looked at, 0 otherwise."""
    codes = {HealthSeverity.ERROR: ExitCode.REFUSED, HealthSeverity.UNKNOWN: ExitCode.NO_ACCESS}
    return codes.get(_worst(findings), ExitCode.DONE)


def to_document(findings: Sequence[HealthFinding]) -> JsonObject:
    """Return what ``-o json`` prints."""
    numbers: JsonObject = {str(severity): number for severity, number in counts(findings).items()}
    entries = [finding.to_json() for finding in findings]
    return {"severity": str(_worst(findings)), "counts": numbers, "findings": [*entries]}


def listed(names: Iterable[str]) -> str:
    """Name the first of several, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
    return ", ".join(found[:_MAX_LISTED]) + more
