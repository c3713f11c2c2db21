"""What an explanation consists of: facts that were read, and a step for each check. Pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nodeattest_cli.explain.eventlog import ShownLog
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Check, Denied

__all__ = [
    "CheckOutcome",
    "CheckStep",
    "Explanation",
    "from_check",
    "needs_platform",
    "not_checked",
    "passed",
    "refusal",
]


class CheckOutcome(StrEnum):
    """How a step went."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"
    """Something that it needs was not given, or is a platform's to tell; ``got`` says what."""


@dataclass(frozen=True, slots=True)
class CheckStep:
    """One check of the replay."""

    name: str
    section: str
    expected: str
    got: str
    outcome: CheckOutcome
    reason: str = ""
    """The Reason of a refusal."""

    def to_json(self) -> JsonObject:
        """Return the entry of ``checks``."""
        entry: JsonObject = {
            "name": self.name,
            "section": self.section,
            "outcome": self.outcome,
            "expected": self.expected,
            "got": self.got,
        }
        return entry | ({"reason": self.reason} if self.reason else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that can be said of a request."""

    facts: Sequence[tuple[str, str]]
    """What the request says, name and value; never a secret, never evidence bytes."""
    steps: Sequence[CheckStep]
    refused_then: bool = False
    """Whether the request's stored verdict is a denial."""
    log: ShownLog | None = None
    """The event log that the request carries: what the node says of its boot, beside what the quote proves."""

    @property
    def failed(self) -> bool:
        """Whether a check refuses the request."""
        return any(step.outcome is CheckOutcome.FAILED for step in self.steps)

    @property
    def unexplained(self) -> bool:
        """Whether the request was denied, and nothing that could be checked here says why."""
        return self.refused_then and not self.failed

    def to_json(self) -> JsonObject:
        """Return the one object of ``-o json``."""
        checks: list[JsonValue] = [step.to_json() for step in self.steps]
        said: JsonObject = {"facts": dict[str, JsonValue](self.facts), "checks": checks, "refused": self.failed}
        said["refusedThen"] = self.refused_then
        if self.log is not None:
            said["eventLog"] = self.log.to_json()
        return said


def from_check(check: Check) -> CheckStep:
    """Take over a check of a verification's record."""
    outcome = CheckOutcome.PASSED if check.passed else CheckOutcome.FAILED
    return CheckStep(check.name, check.section, check.expected, check.got, outcome)


def passed(name: str, section: str, expected: str) -> CheckStep:
    """Show a check that passed."""
    return CheckStep(name, section, expected, expected, CheckOutcome.PASSED)


def refusal(name: str, section: str, denied: Denied) -> CheckStep:
    """Show a check that refuses."""
    return CheckStep(name, section, denied.expected, denied.got, CheckOutcome.FAILED, denied.reason)


def not_checked(name: str, section: str, missing: str) -> CheckStep:
    """Show a check that lacks a document."""
    return CheckStep(name, section, "", f"not given: {missing}", CheckOutcome.NOT_CHECKED)


def needs_platform(name: str, section: str, detail: str) -> CheckStep:
    """Show a check that only the platform's API can answer, which is not asked here."""
    return CheckStep(name, section, "", f"needs the platform: {detail}", CheckOutcome.NOT_CHECKED)
