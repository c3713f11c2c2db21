"""What a declared run of a model checker is, and what it is expected to say.

Promises: a run names its file and one verdict for each claim; a claim has a sentence that says what it means. Nothing
here calls a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Edit", "Mutant", "Query", "Scenario", "SpinRun", "Verdict"]


class Verdict(StrEnum):
    """What a model checker says about one claim."""

    TRUE = "true"
    FALSE = "false"
    """With a trace that breaks it."""
    UNKNOWN = "no result"
    """ProVerif's ``cannot be proved``: it found no proof, and no trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpinRun:
    """One search of all states of a Promela model for a failed ``assert``.

    A claim is the text of the comment ``/* claim: NAME */`` on the line of an ``assert``. Names are unique.
    """

    name: str
    sentence: str
    """What is shown; of a mutant, what happens without the check."""
    file: str = "ledger.pml"
    defines: tuple[str, ...] = ()
    """Macros: ``M_...`` leaves out a check, others choose a scenario."""
    fails: str = ""
    """The claim of which Spin finds a violation; empty if every claim holds."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a ProVerif file: the text of the comment ``(* query: NAME *)`` before it."""

    name: str
    sentence: str
    expected: Verdict = Verdict.TRUE


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A ProVerif file with queries and a main process."""

    file: str
    title: str
    queries: tuple[Query, ...]
    libraries: tuple[str, ...] = ()
    """Files with the declarations and roles that it uses."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a model's text.

    The old text must be in the scenario and its libraries once, or as often as ``times`` says.
    """

    old: str
    new: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A model without one check, in one scenario."""

    check: str
    """What is left out."""
    scenario: str
    """The scenario's file."""
    edits: tuple[Edit, ...]
    query: str = ""
    """The query that fails; empty if none of the scenario does."""
    expected: Verdict = Verdict.FALSE
    sentence: str
    """What the attacker does in the trace; if no query fails, why not, and why the check stays."""

    @property
    def name(self) -> str:
        """Which run it is."""
        return f"{self.check}: {self.scenario}{f', {self.query}' if self.query else ''}"
