"""A row for each declared check: an attack that the check refuses, and how the attack ends without the check.

The product has no switch for a check: its evaluators have their lists as class variables, and its verifiers make a
``Checks`` of their own. Here an evaluator of a test has the declared list without one member, and ``removed`` lets one
name pass in every ``Checks``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import pytest

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable

S = TypeVar("S")
Outcome = tuple[str, str]
"""Name of the check that refused, and its reason."""
GRANTED: Final = ("granted", "")
CHALLENGED: Final = ("challenged", "")
_ONE_OF_MANY: Final = re.compile(
    r"(PCR value|replays PCR|closes PCR|label)( [^ ]+)$|^[a-z]+: (of this machine)$|^(pinned ak)(V2)$"
)


@dataclass(frozen=True, slots=True)
class Row(Generic[S]):
    """One check, and an attack about which everything else is right."""

    check: str
    """``list: name``."""
    attack: str
    reason: Reason
    """Of the refusal by this check."""
    run: Callable[[S], Awaitable[object]]
    """Carries out the attack: returns its ``Outcome``, or raises what the verifier raises."""
    mutants: tuple[str, ...] = ()
    """Runs of the ledger's models that lack the same check."""
    stand_in: Callable[[], Any] | None = None
    """Makes the provider of the attack, where the usual one would not do."""

    @property
    def part(self) -> str:
        """The list of the check."""
        return self.check.partition(": ")[0]

    @property
    def name(self) -> str:
        """The check's name in its list."""
        return self.check.partition(": ")[2]


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
