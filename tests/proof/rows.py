"""A row for each check: the attack that it alone refuses, or what else refuses it; and the page's table of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from csr_world import OneRound
from mutants import GRANTED, Ended

from nodeattest_providers.errors import Reason
from tools.prove.mutants import MUTANTS

__all__ = ["Row", "by_check", "rendered", "steps"]

S = TypeVar("S")
_MUTANTS: Final = frozenset(mutant.check for mutant in MUTANTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Generic[S]):
    """One check: exactly one of ``gains`` and ``stays`` begins with what holds without it."""

    check: str
    """``list: name``."""
    attack: str
    """What is tried; everything else about the request is right."""
    reason: Reason
    """Of the refusal by this check, and no other."""
    run: Callable[[S], Awaitable[Ended]]
    then: tuple[tuple[str, str], ...] = ()
    """Which checks refuse the same attack, by which reason, as this one and then these are removed."""
    gains: str = ""
    """What the attack gains when all of these are gone; empty where no list can be without what refuses then."""
    ends: Ended = GRANTED
    """How it then ends."""
    stays: str = ""
    """Why the check stays, where others refuse its attack or where the attack gains nothing."""
    stand_in: Callable[[], OneRound] | None = None
    """Makes a provider whose answer is set, in the TPM's place; for attacks on what a provider could let pass."""
    versions: tuple[int, ...] = ()
    """Of the TPM's evidence, for which the row holds."""
    mutants: tuple[str, ...] = ()
    """Runs of the ledger's models that lack the same check; a mutant of the protocol's has the check's name."""


def by_check(rows: Iterable[Row[S]]) -> dict[str, Row[S]]:
    """Index rows by their check; a check has one row."""
    return {row.check: row for row in rows}


def steps(row: Row[S]) -> list[Ended]:
    """List how the attack ends, as the check and then those that refuse it, too, are removed one after the other."""
    refused: list[Ended] = [(row.check, row.reason), *row.then]
    return [*refused, row.ends] if row.gains else refused


def rendered(row: Row[S]) -> list[str]:
    """Write a row of the page."""
    then = ", then ".join(
        f"*{name.partition(': ')[2] or name}*" + (f" (`{why}`)" if why else "") for name, why in row.then
    )
    without = f"refused by {then}" if then else row.gains
    if then and row.gains:
        without += f"; without these, too: {row.gains}"
    if row.stays:
        without += f". Stays, because {row.stays}"
    name = row.check.partition(": ")[2]
    models = [f"[{run}](README.md#the-ledger)" for run in row.mutants]
    if name in _MUTANTS:
        models.append("[ProVerif](README.md#what-each-check-is-for)")
    return [name, row.attack, f"`{row.reason}`", without, ", ".join(models)]
