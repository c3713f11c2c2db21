"""Binding cases to rows of the catalogue, and reading a verdict off whatever is attacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet
from catalogue import ROWS, Expected, Row, Verdict
from proof_page import CHECK_OF, NAMES, plain, removed

from nodeattest_providers.errors import ChallengeRequired, Check, Denied, Unavailable

T = TypeVar("T")


def attacks(table: Mapping[str, T]) -> list[ParameterSet]:
    """Make the parameters ``(row, value)`` of a test that runs these rows."""
    return [
        pytest.param(ROWS[row], value, id=f"{row} {ROWS[row].expected.reason}", marks=pytest.mark.attack(row))
        for row, value in table.items()
    ]


def evaluated(action: Callable[[], object], row: Row | None = None) -> Expected:
    """Tell the verdict; any exception that is none goes through and fails the test.

    A row that docs/proof/checks.md names is refused by the check of that page, and ends otherwise without it.
    """
    outcome, check = _ended(action)
    if row is not None and row.id in CHECK_OF:
        assert check == CHECK_OF[row.id], check
        with removed(check):
            try:
                is_necessary = _ended(action) != (outcome, check)
            except (AssertionError, AttributeError, LookupError, TypeError, ValueError):
                is_necessary = True
        assert is_necessary, check
    return outcome


def _ended(action: Callable[[], object]) -> tuple[Expected, str]:
    """Return the verdict and the check that refused; each check that was recorded is on the page."""
    outcome, recorded = Expected(Verdict.ACCEPT, ""), tuple[Check, ...]()
    try:
        recorded = getattr(action(), "checks", ())
    except Denied as denied:
        outcome, recorded = Expected(Verdict.DENY, denied.reason), denied.checks
    except Unavailable as unavailable:
        outcome, recorded = Expected(Verdict.WAIT, unavailable.reason), unavailable.checks
    except ChallengeRequired:
        pass
    names = [plain(check.name) for check in recorded]
    if not NAMES.issuperset(names):
        pytest.fail(f"docs/proof/checks.md does not name {set(names) - NAMES}")
    return outcome, names[-1] if names and outcome.reason else ""
