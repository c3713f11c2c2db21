"""Binding cases to rows of the catalogue, and reading a verdict off whatever is attacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet
from catalogue import ROWS, Expected, Verdict

from nodeattest_providers.errors import ChallengeRequired, Denied, Unavailable

T = TypeVar("T")


def attacks(table: Mapping[str, T]) -> list[ParameterSet]:
    """Make the parameters ``(row, value)`` of a test that runs these rows."""
    return [
        pytest.param(ROWS[row], value, id=f"{row} {ROWS[row].expected.reason}", marks=pytest.mark.attack(row))
        for row, value in table.items()
    ]


def evaluated(action: Callable[[], object]) -> Expected:
    """Tell the verdict; any exception that is none goes through and fails the test."""
    try:
        action()
    except Denied as denied:
        return Expected(Verdict.DENY, denied.reason)
    except Unavailable as unavailable:
        return Expected(Verdict.WAIT, unavailable.reason)
    except ChallengeRequired:
        pass
    return Expected(Verdict.ACCEPT, "")
