"""The declared ProVerif runs of docs/proof: scenarios, and mutants without one check."""

from __future__ import annotations

from typing import Final

from tools.prove.declared import Mutant, Scenario

__all__ = ["MUTANTS", "SCENARIOS"]

SCENARIOS: Final[tuple[Scenario, ...]] = ()
MUTANTS: Final[tuple[Mutant, ...]] = ()
