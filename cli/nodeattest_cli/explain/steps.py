"""Making steps: a rule that is tried, passed or refused, or that lacks a document."""

from __future__ import annotations

from collections.abc import Callable

from nodeattest_cli.explain.model import Outcome, Step
from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["attempt", "needs_platform", "not_checked", "passed", "refusal"]


def attempt(name: str, section: str, judge: Callable[[], object]) -> Step:
    """Try one of the controller's rules."""
    try:
        judge()
    except Denied as denied:
        return refusal(name, section, denied)
    except Unavailable as unavailable:
        return Step(name, section, "a Machine that is ready", unavailable.detail, Outcome.FAILED, unavailable.reason)
    return passed(name, section, "as the rule demands")


def passed(name: str, section: str, expected: str) -> Step:
    """Show a rule that holds."""
    return Step(name, section, expected, expected, Outcome.PASSED)


def refusal(name: str, section: str, denied: Denied) -> Step:
    """Show a rule that refuses."""
    return Step(name, section, denied.expected, denied.got, Outcome.FAILED, denied.reason)


def not_checked(name: str, section: str, missing: str) -> Step:
    """Show a rule that lacks a document."""
    return Step(name, section, "", f"not given: {missing}", Outcome.NOT_CHECKED)


def needs_platform(name: str, section: str, detail: str) -> Step:
    """Show a rule that only the platform's API can answer, which is not asked here."""
    return Step(name, section, "", f"needs the platform: {detail}", Outcome.NOT_CHECKED)
