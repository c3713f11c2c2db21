"""The rows of docs/proof/checks.md: for each declared check an attack, and the reason of its refusal.

The product has no switch for a check: its evaluators have their lists as class variables, and its verifiers make a
``Checks`` of their own. Here an evaluator of a test has the declared list without one member, and ``removed`` lets one
name pass in every ``Checks``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import ChallengeRequired, Denied, Unavailable

Outcome = tuple[str, str]
"""Name of the check that refused, and its reason."""
GRANTED: Final = ("granted", "")
CHALLENGED: Final = ("challenged", "")
_PAGE: Final = Path(__file__).parents[2] / "docs" / "proof" / "checks.md"
_TABLE: Final = re.compile(r"<!-- table: (\w+) -->\n\|.*\n\|.*\n((?:\|.*\n)+)")
_ONE_OF_MANY: Final = re.compile(
    r"(PCR value|replays PCR|closes PCR|label)( [^ ]+)$|^[a-z]+: (of this machine)$|^(pinned ak)(V2)$"
)


class Row(NamedTuple):
    """One check."""

    part: str
    """The list of the check."""
    name: str
    reason: str
    models: str
    """Links to the runs of models that lack the same check."""

    @property
    def check(self) -> str:
        """``list: name``."""
        return f"{self.part}: {self.name}"


def _rows() -> list[Row]:
    return [
        Row(part, cells[0], cells[1 if part == "parsers" else 2].strip("`"), cells[-1])
        for part, table in _TABLE.findall(_PAGE.read_text(encoding="utf-8"))
        for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    ]


ROWS: Final = _rows()


def plain(name: str) -> str:
    """Name a check that is asked of each register, label, part or version once, whichever it is."""
    return _ONE_OF_MANY.sub(r"\1\3\4", name)


@contextmanager
def removed(name: str) -> Generator[None]:
    """Let a check of this name pass in every verification; an empty name removes none."""
    names, require = {name, name.removeprefix("EC2: ")} - {""}, Checks.require

    def passing(checks: Checks, passed: bool, called: str, **rest: Any) -> None:
        require(checks, passed or plain(called) in names, called, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checks, "require", passing)
        yield


async def outcome_of(attack: Awaitable[object]) -> Outcome:
    """Return which check refused, or how the attack ended otherwise."""
    try:
        await attack
    except (Denied, Unavailable) as refused:
        return (plain(refused.checks[-1].name) if refused.checks else "", refused.reason)
    except ChallengeRequired:
        return CHALLENGED
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        return ("crashed", type(error).__name__)
    return GRANTED
