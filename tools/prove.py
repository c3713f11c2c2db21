"""``python -m tools.prove``: run the models of docs/proof, and fail where one says something else than is declared.

docs/proof/runs.yaml declares the runs. Spin always runs, its mutants included. ProVerif runs where it is found, on the
path or by PROVERIF; its mutants run with ``mutations``. ``--write`` renews docs/proof/runs.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from tools.markdown_tables import cell, code, table

MODELS: Final = Path(__file__).parents[1] / "docs" / "proof"
PAGE: Final = MODELS / "runs.md"
_TIMEOUT: Final = 900
"""Seconds for one program, on a machine that has other work."""
_NO_PROVERIF: Final = "ProVerif is not found, so its models are not checked: docs/proof/README.md"
_QUERY: Final = re.compile(r"\(\* query: (.+?) \*\)\s*query\b.*?\.\n", re.DOTALL)
_VERDICT: Final = re.compile(
    r"^(?: - )?(?:Query|Non-interference) .*?(is true|is false|cannot be proved)\b[^\n]*\.$", re.MULTILINE
)
_VERDICTS: Final = {"is true": "true", "is false": "false", "cannot be proved": "no result"}


class RunError(Exception):
    """A run gave no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpinRun:
    """A search of all states of a Promela model for a failed ``assert``."""

    name: str
    sentence: str
    """What is shown; of a mutant, what happens without the check."""
    file: str = "ledger.pml"
    defines: Sequence[str] = ()
    """Macros: ``M_...`` leaves out a check, others choose a scenario."""
    fails: str = ""
    """The comment ``claim: NAME`` of the ``assert`` that is violated; empty if every claim holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query of a ProVerif file, named by the comment ``query: NAME`` before it."""

    name: str
    sentence: str
    expected: str = "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A ProVerif file with queries and a main process."""

    file: str
    queries: Sequence[Query]
    libraries: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of a model's text."""

    old: str
    new: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A scenario without one check."""

    check: str
    scenario: str
    edits: Sequence[Edit]
    sentence: str
    """What the attacker does in the trace; if no query fails, why not, and why the check stays."""
    query: str = ""
    """The query that fails; empty if none does."""
    expected: str = "false"

    @property
    def name(self) -> str:
        """Which run it is."""
        return f"{self.check}: {self.scenario}{f', {self.query}' if self.query else ''}"


_DECLARED: Final[Any] = yaml.safe_load((MODELS / "runs.yaml").read_text(encoding="utf-8"))


def _with(cls: Callable[..., Any], key: str, inner: Callable[..., Any], values: dict[str, Any]) -> Any:  # noqa: ANN401 - YAML
    return cls(**{**values, key: tuple(inner(**one) for one in values[key])})


LEDGER_RUNS: Final[Sequence[SpinRun]] = [SpinRun(**run) for run in _DECLARED["spin"]]
SCENARIOS: Final[Sequence[Scenario]] = [_with(Scenario, "queries", Query, one) for one in _DECLARED["scenarios"]]
MUTANTS: Final[Sequence[Mutant]] = [_with(Mutant, "edits", Edit, one) for one in _DECLARED["mutants"]]
NOT_MODELLED: Final[dict[str, str]] = _DECLARED["not_modelled"]
"""The members of ``CHECKS`` without a mutant, each with the reason."""


def run_spin(run: SpinRun, models: Path, work: Path) -> str:
    """Search all states of a model in the empty folder ``work``; return the claim that fails, or an empty string."""
    model, macros = models / run.file, [f"-D{macro}" for macro in run.defines]
    _call(["spin", *macros, "-a", str(model)], work)
    _call(["cc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DNOFAIR", "-o", "pan", "pan.c"], work)
    # -E: a replica that waits for ever is no error; -n: no list of lines that no state reached.
    found = _call(["./pan", "-E", "-n", "-m200000", "-w26"], work)
    if "errors: 0" in found and "Search not completed" not in found and "search depth too small" not in found:
        return ""
    trail = next(work.glob("*.trail"), None)
    if trail is None:
        raise RunError(f"the search is not complete:\n{found[-2000:]}")
    replay = _call(["spin", *macros, "-k", str(trail), "-t", str(model)], work, may_fail=True)
    line = re.search(r":(\d+), Error: assertion violated", replay)
    text = model.read_text(encoding="utf-8").splitlines()[int(line[1]) - 1] if line else ""
    claim = re.search(r"/\* claim: (.+?) \*/", text)
    if claim is None:
        raise RunError(f"the violation is of no assertion with a claim:\n{replay[-2000:]}")
    return claim[1]


def proverif_program() -> str | None:
    """Return the program that PROVERIF names, or the one on the path."""
    return shutil.which(os.environ.get("PROVERIF", "proverif"))


def queries_of(text: str) -> list[str]:
    """Return the names of a scenario's queries, in order."""
    return [match[1] for match in _QUERY.finditer(text)]


def with_query(text: str, name: str) -> str:
    """Return a scenario with one of its queries only."""
    if name not in queries_of(text):
        raise RunError(f"no query is named {name!r}")
    return _QUERY.sub(lambda match: match[0] if match[1] == name else "", text)


def edited(texts: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    """Return the texts with each edit made as often as it says, in all of them together."""
    changed = list(texts)
    for edit in edits:
        found = sum(text.count(edit.old) for text in changed)
        if found != edit.times:
            raise RunError(f"expected {edit.old!r} {edit.times} times in the model, got {found}")
        changed = [text.replace(edit.old, edit.new) for text in changed]
    return changed


def run_proverif(
    scenario: Scenario, models: Path, work: Path, edits: Sequence[Edit] = (), query: str = ""
) -> list[str]:
    """Check a scenario's queries, or one of them, in the folder ``work``; return a verdict for each, in order."""
    names = (*scenario.libraries, scenario.file)
    texts = edited([(models / name).read_text(encoding="utf-8") for name in names], edits)
    if query:
        texts[-1] = with_query(texts[-1], query)
    for name, text in zip(names, texts, strict=True):
        (work / name).write_text(text, encoding="utf-8")
    libraries = [word for name in scenario.libraries for word in ("-lib", name)]
    said = _call([proverif_program() or "proverif", *libraries, scenario.file], work)
    verdicts = [_VERDICTS[match[1]] for match in _VERDICT.finditer(said.partition("Verification summary:")[2])]
    expected = 1 if query else len(queries_of(texts[-1]))
    if len(verdicts) != expected:
        raise RunError(f"expected {expected} verdicts of ProVerif, got {len(verdicts)}:\n{said[-2000:]}")
    return verdicts


def _call(command: list[str], work: Path, *, may_fail: bool = False) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except (subprocess.TimeoutExpired, FileNotFoundError) as error:
        raise RunError(f"{command[0]}: {error}") from None
    if done.returncode and not may_fail:
        raise RunError(f"{command[0]} ends with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def written(page: str) -> str:
    """Return the page with its tables written anew, each between ``<!-- table: NAME -->`` and ``<!-- end -->``."""
    tables = {
        "queries": table(
            ("file", "query", "what it says", "verdict"),
            ((code(s.file), cell(q.name), cell(q.sentence), q.expected) for s in SCENARIOS for q in s.queries),
        ),
        "mutants": table(
            ("without", "scenario, query that fails", "what the attacker does, or why nothing fails", "verdict"),
            (
                (cell(m.check), f"{code(m.scenario)}, {cell(m.query) or 'none'}", cell(m.sentence), m.expected)
                for m in MUTANTS
            ),
        ),
        "checks": table(
            ("check", "why it has no mutant"), ((cell(check), cell(reason)) for check, reason in NOT_MODELLED.items())
        ),
        "ledger": table(
            ("file", "run", "macros", "the claim that fails", "what is shown"),
            (
                (code(r.file), cell(r.name), " ".join(map(code, r.defines)), cell(r.fails) or "none", cell(r.sentence))
                for r in LEDGER_RUNS
            ),
        ),
    }
    for name, text in tables.items():
        part = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = part.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)
    return page


def _runs(what: str) -> Iterator[tuple[str, list[str], Callable[[Path], list[str]]]]:
    """Yield name, expected verdicts and call of each run that is wanted and possible here."""
    if what in {"models", "spin", "all"}:
        for run in LEDGER_RUNS:
            yield run.name, [run.fails], lambda work, run=run: [run_spin(run, MODELS, work)]
    if proverif_program() is None:
        return
    files = {scenario.file: scenario for scenario in SCENARIOS}
    declared = {file: [query.expected for query in scenario.queries] for file, scenario in files.items()}
    if what in {"models", "proverif", "all"}:
        for file, scenario in files.items():
            yield file, declared[file], partial(run_proverif, scenario, MODELS)
    if what in {"mutations", "all"}:
        for mutant in MUTANTS:  # one without a query: each verdict is as without the change
            expected = [mutant.expected] if mutant.query else declared[mutant.scenario]
            call = partial(run_proverif, files[mutant.scenario], MODELS, edits=mutant.edits, query=mutant.query)
            yield mutant.name, expected, call


def _run(run: tuple[str, list[str], Callable[[Path], list[str]]]) -> bool:
    """Run one and print what it says; return whether it is as declared."""
    name, expected, call = run
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        try:
            got = call(Path(work))
        except RunError as error:
            got = [str(error)]
    mark, wanted = ("ok", "") if got == expected else ("DIFFERS", f", expected {expected}")
    print(
        f"{mark:7} {name}: {' '.join(got) or 'all claims hold'}{wanted} ({time.monotonic() - begun:.0f} s)", flush=True
    )
    return got == expected


def main() -> int:
    """Run what is declared; the exit code says whether all is as declared."""
    parser = argparse.ArgumentParser(prog="python -m tools.prove", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["models", "mutations", "spin", "proverif", "all"], default="models")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose name contains this, as boot.pv")
    parser.add_argument("--write", action="store_true", help="write the tables of docs/proof/runs.md")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    if proverif_program() is None and options.what != "spin":
        print(_NO_PROVERIF)
    runs = [run for run in _runs(options.what) if options.only in run[0]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        right = list(pool.map(_run, runs))
    print(f"{len(right)} runs, {right.count(False)} differ")
    return 0 if right and all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
