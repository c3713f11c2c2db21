"""``python -m tools.prove``: run the models of docs/proof, and fail where a verdict is not the declared one.

docs/proof/runs.yaml declares the runs. Spin always runs. ProVerif runs where it is found, on the path or by PROVERIF;
its models without one check run with ``--mutants``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

MODELS: Final = Path(__file__).parents[1] / "docs" / "proof"
_TIMEOUT: Final = 900
"""Seconds for one program, on a machine that has other work."""
_QUERY: Final = re.compile(r"\(\* query: (.+?) \*\)\s*query\b.*?\.\n", re.DOTALL)
_VERDICT: Final = re.compile(
    r"^(?: - )?(?:Query|Non-interference) .*?(is true|is false|cannot be proved)\b[^\n]*\.$", re.MULTILINE
)
_VERDICTS: Final = {"is true": "true", "is false": "false", "cannot be proved": "no result"}


class RunError(Exception):
    """A run gave no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpinRun:
    """A search of all states of a Promela model for a failed ``assert``; fields as in runs.yaml."""

    name: str
    sentence: str
    file: str = "ledger.pml"
    defines: Sequence[str] = ()
    fails: str = ""


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
    """A change of a model's text, which contains ``old`` so many times."""

    old: str
    new: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A scenario without one check, and the query that fails without it; no query: every verdict stays."""

    check: str
    scenario: str
    edits: Sequence[Edit]
    sentence: str
    query: str = ""
    expected: str = "false"

    @property
    def name(self) -> str:
        """Which run it is."""
        return f"{self.check}: {self.scenario}{f', {self.query}' if self.query else ''}"


_DECLARED: Final[Any] = yaml.safe_load((MODELS / "runs.yaml").read_text(encoding="utf-8"))
LEDGER_RUNS: Final[Sequence[SpinRun]] = [SpinRun(**run) for run in _DECLARED["spin"]]
SCENARIOS: Final[Sequence[Scenario]] = [
    Scenario(**{**one, "queries": [Query(**query) for query in one["queries"]]}) for one in _DECLARED["scenarios"]
]
MUTANTS: Final[Sequence[Mutant]] = [
    Mutant(**{**one, "edits": [Edit(**edit) for edit in one["edits"]]}) for one in _DECLARED["mutants"]
]
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


def queries_of(text: str) -> list[str]:
    """Return the names of a scenario's queries, in order."""
    return [match[1] for match in _QUERY.finditer(text)]


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
        texts[-1] = _QUERY.sub(lambda match: match[0] if match[1] == query else "", texts[-1])
    for name, text in zip(names, texts, strict=True):
        (work / name).write_text(text, encoding="utf-8")
    libraries = [word for name in scenario.libraries for word in ("-lib", name)]
    output = _call([_proverif() or "proverif", *libraries, scenario.file], work)
    verdicts = [_VERDICTS[match[1]] for match in _VERDICT.finditer(output.partition("Verification summary:")[2])]
    if len(verdicts) != (expected := len(queries_of(texts[-1]))):
        raise RunError(f"expected {expected} verdicts of ProVerif, got {len(verdicts)}:\n{output[-2000:]}")
    return verdicts


def _proverif() -> str | None:
    return shutil.which(os.environ.get("PROVERIF", "proverif"))


def _call(command: list[str], work: Path, *, may_fail: bool = False) -> str:
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (subprocess.TimeoutExpired, FileNotFoundError) as error:
        raise RunError(f"{command[0]}: {error}") from None
    if done.returncode and not may_fail:
        raise RunError(f"{command[0]}: exit code {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout + done.stderr


def _runs(*, mutants: bool) -> Iterator[tuple[str, list[str], Callable[[Path], list[str]]]]:
    """Yield name, expected verdicts and call of each run that is possible here."""
    for run in LEDGER_RUNS:
        yield run.name, [run.fails], lambda work, run=run: [run_spin(run, MODELS, work)]
    if _proverif() is None:
        print("ProVerif is not found, so its models are not checked: docs/proof/README.md")
        return
    files = {scenario.file: scenario for scenario in SCENARIOS}
    declared = {file: [query.expected for query in scenario.queries] for file, scenario in files.items()}
    for file, scenario in files.items():
        yield file, declared[file], partial(run_proverif, scenario, MODELS)
    for mutant in MUTANTS if mutants else ():
        expected = [mutant.expected] if mutant.query else declared[mutant.scenario]
        call = partial(run_proverif, files[mutant.scenario], MODELS, edits=mutant.edits, query=mutant.query)
        yield mutant.name, expected, call


def _run(run: tuple[str, list[str], Callable[[Path], list[str]]]) -> bool:
    """Run one and print its verdict; return whether it is as declared."""
    name, expected, call = run
    with tempfile.TemporaryDirectory() as work:
        try:
            got = call(Path(work))
        except RunError as error:
            got = [str(error)]
    mark, wanted = ("ok", "") if got == expected else ("DIFFERS", f", expected {expected}")
    print(f"{mark:7} {name}: {' '.join(got) or 'all claims hold'}{wanted}", flush=True)
    return got == expected


def main() -> int:
    """Run what is declared; the exit code says whether all is as declared."""
    parser = argparse.ArgumentParser(prog="python -m tools.prove", description=__doc__)
    parser.add_argument("--mutants", action="store_true", help="also each ProVerif model without one of its checks")
    parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose name contains this, as boot.pv")
    options = parser.parse_args()
    runs = [run for run in _runs(mutants=options.mutants) if options.only in run[0]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        right = list(pool.map(_run, runs))
    print(f"{len(right)} runs, {right.count(False)} differ")
    return 0 if right and all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
