"""Every target by its name. A parser that reads bytes of others belongs here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fuzz import agent, clouds, controller, discovery, identity, tpm, wire
from fuzz.target import TARGETS, Target

__all__ = ["CORPUS", "MODULES", "TARGETS", "seeds_of"]

MODULES: Final = (agent, clouds, controller, discovery, identity, tpm, wire)
"""They declare the targets."""
CORPUS: Final = Path(__file__).parents[1] / "vectors" / "fuzz"
"""A folder of seeds for each target; what a fuzzer or a bug found stays beside them."""


def seeds_of(target: Target) -> list[Path]:
    return sorted(path for path in (CORPUS / target.name).glob("*") if path.is_file())
