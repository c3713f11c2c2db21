"""The tables of docs/proof/checks.md, written of the rows; ``make reference`` renews the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import controller_rows
import tpm_rows
from cloud_rows import AWS_ROWS, AZURE_ROWS, GCP_ROWS, OCI_ROWS
from parts_rows import CHALLENGE_ROWS, COMPOSITE_ROWS
from removal import Row

from tools.markdown_tables import table
from tools.prove import MUTANTS

PAGE: Final = Path(__file__).parents[2] / "docs" / "proof" / "checks.md"
_COLUMNS: Final = ("check", "attack", "refused as", "the model without it")
_BLOCK: Final = re.compile(r"(<!-- table: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_MUTANTS: Final = frozenset(mutant.check for mutant in MUTANTS)

ALL_ROWS: Final[Sequence[Row[Any]]] = (
    *controller_rows.ROWS,
    *tpm_rows.ROWS,
    *CHALLENGE_ROWS,
    *COMPOSITE_ROWS,
    *AWS_ROWS,
    *AZURE_ROWS,
    *GCP_ROWS,
    *OCI_ROWS,
)


def _rendered(row: Row[Any]) -> list[str]:
    """Write a row of the page."""
    models = [f"[{run}](README.md#the-ledger)" for run in row.mutants]
    if row.name in _MUTANTS:
        models.append("[ProVerif](README.md#what-each-check-is-for)")
    return [row.name, row.attack, f"`{row.reason}`", ", ".join(models)]


_PARTS: Final = tuple(dict.fromkeys(row.part for row in ALL_ROWS))
TABLES: Final[Mapping[str, str]] = {
    part: table(_COLUMNS, (_rendered(row) for row in ALL_ROWS if row.part == part)) for part in _PARTS
} | {
    "parsers": table(
        ("parser", "refused as"), ([name, f"`{reason}`"] for name, (reason, _) in tpm_rows.PARSERS.items())
    )
}


def renewed(page: str) -> str:
    """Write the page with the tables of the rows."""
    return _BLOCK.sub(lambda found: f"{found[1]}{TABLES[found[2]]}\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
