"""The tables of docs/proof/README.md, made of the declared runs and of what a run measured.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. Its last column says how long the run took when
the table was written; all others follow from the declared runs, and a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tools.markdown_tables import cell, code, table
from tools.prove.ledger_runs import LEDGER_RUNS
from tools.prove.mutants import MUTANTS, NOT_MODELLED
from tools.prove.protocol_runs import SCENARIOS

__all__ = ["NOT_MEASURED", "PAGE", "rewrite", "tables"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "proof" / "README.md"
NOT_MEASURED: Final = "not measured"
"""The last cell of a row that never ran; the test of the page refuses it."""
_COLUMNS: Final = {
    "queries": ("file", "query", "what it says", "verdict", "time"),
    "mutants": (
        "without",
        "scenario, query that fails",
        "what the attacker does, or why nothing fails",
        "verdict",
        "time",
    ),
    "checks": ("check", "why it has no mutant"),
    "ledger": ("file", "run", "macros", "the claim that fails", "what is shown", "states, time"),
}


def tables(measured: Mapping[str, str]) -> dict[str, str]:
    """Return the page's tables; ``measured`` has the last column's cells by the names of the runs."""
    rows = {
        "queries": _queries(measured),
        "mutants": _mutants(measured),
        "checks": ((cell(check), cell(reason)) for check, reason in NOT_MODELLED.items()),
        "ledger": _ledger(measured),
    }
    return {name: table(columns, rows[name]) for name, columns in _COLUMNS.items()}


def rewrite(page: str, measured: Mapping[str, str]) -> str:
    """Return the page with its tables written anew; a row that was not measured keeps the cell that it had."""
    had = dict(map(_split, page.splitlines()))
    for name, text in tables(measured).items():
        rows = "\n".join(_kept(line, had) for line in text.splitlines())
        part = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = part.sub(lambda match, rows=rows: f"{match[1]}{rows}\n{match[2]}", page)
    return page


def _kept(line: str, had: Mapping[str, str]) -> str:
    row, last = _split(line)
    return f"{row} | {had.get(row, last)}" if last == f"{NOT_MEASURED} |" else line


def _split(line: str) -> tuple[str, str]:
    """Split the last cell off a row."""
    row, _, last = line.rpartition(" | ")
    return row, last


def _queries(measured: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for scenario in SCENARIOS:
        time = measured.get(scenario.file, NOT_MEASURED)
        for query in scenario.queries:
            yield code(scenario.file), cell(query.name), cell(query.sentence), query.expected, time
            time = "the same run"


def _mutants(measured: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for mutant in MUTANTS:
        query = cell(mutant.query) if mutant.query else "none"
        place = f"{code(mutant.scenario)}, {query}"
        yield cell(mutant.check), place, cell(mutant.sentence), mutant.expected, measured.get(mutant.name, NOT_MEASURED)


def _ledger(measured: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for run in LEDGER_RUNS:
        macros = " ".join(code(macro) for macro in run.defines)
        yield (
            code(run.file),
            cell(run.name),
            macros,
            cell(run.fails) or "none",
            cell(run.sentence),
            measured.get(run.name, NOT_MEASURED),
        )
