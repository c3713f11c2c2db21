"""``python -m tools.prove``: runs the models of docs/proof, and fails where one says something else than is declared.

Spin always runs, its mutants included. ProVerif runs where it is found, on the path or by PROVERIF; its mutants run
with ``mutations``. ``--write`` writes the tables of docs/proof/README.md anew; rows that did not run keep their time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from tools.prove.declared import Mutant, Scenario, SpinRun
from tools.prove.ledger_runs import LEDGER_RUNS
from tools.prove.mutants import MUTANTS
from tools.prove.page import PAGE, rewrite
from tools.prove.protocol_runs import SCENARIOS
from tools.prove.proverif import proverif_program, run_proverif
from tools.prove.spin import RunError, run_spin, spin_missing

MODELS: Final = PAGE.parent
NO_PROVERIF: Final = (
    "ProVerif is not found, so its models are not checked (docs/proof/README.md says how to install it)"
)
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """What one run said, beside what was expected."""

    name: str
    expected: str
    got: str
    measured: str

    @property
    def differs(self) -> bool:
        """Whether the model says something else than is declared."""
        return self.got != self.expected


@dataclass(slots=True)
class Table:
    """Prints each row when its run ends."""

    rows: list[Row] = field(default_factory=list[Row])

    def add(self, row: Row) -> None:
        """Print and keep a row."""
        self.rows.append(row)
        mark = "DIFFERS" if row.differs else "ok"
        expected = f", expected {row.expected}" if row.differs else ""
        print(f"{mark:7} {row.name}: {row.got}{expected} ({row.measured})", flush=True)


def main() -> None:
    """Run what is declared; the exit code says whether all is as declared."""
    parser = argparse.ArgumentParser(prog="python -m tools.prove", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["models", "mutations", "spin", "proverif", "all"], default="models")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose name contains this, as boot.pv")
    parser.add_argument("--write", action="store_true", help="write the tables of docs/proof/README.md")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time (%(default)s)")
    options = parser.parse_args()
    what: str = options.what
    runs = [(name, run) for name, run in _declared(what) if options.only in name]
    if not runs:
        missing = f"; {NO_PROVERIF}" if proverif_program() is None else ""
        raise SystemExit(f"no run of {what!r} has {options.only!r} in its name{missing}")
    shown = Table()
    begun = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:  # processes: each measures what it started
        for row in pool.map(_guarded, runs):
            shown.add(row)
    differing = [row for row in shown.rows if row.differs]
    print(f"{len(shown.rows)} runs, {len(differing)} differ, {time.monotonic() - begun:.0f} s")
    if proverif_program() is None and what != "spin":
        print(NO_PROVERIF)
    if differing:
        sys.exit(1)
    if options.write:
        measured = {row.name: row.measured for row in shown.rows}
        PAGE.write_text(rewrite(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")


def _declared(what: str) -> Iterator[tuple[str, Callable[[Path], Row]]]:
    """Yield each run that was asked for and is possible here, under its name."""
    if what in {"models", "spin", "all"}:
        if spin_missing():
            raise SystemExit(spin_missing())
        for run in LEDGER_RUNS:
            yield run.name, partial(_spin_row, run)
    program = proverif_program()
    if program is None:
        if what in {"mutations", "proverif", "all"}:
            raise SystemExit(NO_PROVERIF)
        return
    if what in {"models", "proverif", "all"}:
        for scenario in SCENARIOS:
            yield scenario.file, partial(_scenario_row, program, scenario)
    if what in {"mutations", "all"}:
        for mutant in MUTANTS:
            yield mutant.name, partial(_mutant_row, program, mutant)


def _guarded(run: tuple[str, Callable[[Path], Row]]) -> Row:
    """Run one; a run without a verdict is a difference."""
    name, call = run
    with tempfile.TemporaryDirectory() as work:
        try:
            return call(Path(work))
        except RunError as error:
            return Row(name, "a verdict", str(error), "no verdict")


def _spin_row(run: SpinRun, work: Path) -> Row:
    result = run_spin(run, MODELS, work)
    states = f"{result.states / _MILLION:.1f} million" if result.states >= _MILLION else f"{result.states:,}"
    return Row(run.name, _claims(run.fails), _claims(result.fails), f"{states}, {result.seconds:.0f} s")


def _claims(fails: str) -> str:
    return f"violates: {fails}" if fails else "all claims hold"


def _scenario_row(program: str, scenario: Scenario, work: Path) -> Row:
    result = run_proverif(program, scenario, MODELS, work)
    expected = (query.expected for query in scenario.queries)
    return Row(scenario.file, " ".join(expected), " ".join(result.verdicts), f"{result.seconds:.1f} s")


def _mutant_row(program: str, mutant: Mutant, work: Path) -> Row:
    scenario = next(each for each in SCENARIOS if each.file == mutant.scenario)
    result = run_proverif(program, scenario, MODELS, work, edits=mutant.edits, query=mutant.query)
    seconds = f"{result.seconds:.1f} s"
    declared = {query.name: query.expected for query in scenario.queries}
    if not mutant.query:  # all of them: each as without the change
        same = result.verdicts == tuple(declared.values())
        return Row(mutant.name, "nothing fails", "nothing fails" if same else " ".join(result.verdicts), seconds)
    return Row(mutant.name, mutant.expected, result.verdicts[0], seconds)


if __name__ == "__main__":
    main()
