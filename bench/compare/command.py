"""``python -m bench compare COMMIT``: the figures of another commit and of this one, in turns on this machine.

The cases of the page are run by the interpreter of each: its controller, agent, manifests and demo, driven by the
bench of this commit. Ratios are pair by pair, so that what slows the machine down for minutes does not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.compare.older import installed_commit
from bench.page.case import add_sizes, read_sizes
from bench.page.command import PAGE, ROOT, commit_of, git, run_case
from bench.page.machine import describe
from bench.page.measures import CASES, Sizes
from bench.page.numbers import TIMES, ratios, replaced, spread, wrapped
from bench.page.samples import Case, Run
from nodeattest_cli.demo.tools import Tools
from tools.markdown_tables import table

LAST = Path(__file__).with_name("last.json")
BEFORE, NOW = "before: ", "now: "
COMPARED = ("tpm", "one-step", "alone", "webhook")
SIZES = Sizes(rounds=1, joins=250, cold=9, calls=150, settle=15.0)
ROWS = (
    ("tpm", "rate", "TPM joins a second", "/s"),
    ("tpm", "controller_cpu", "CPU of the controller, a TPM join", "ms"),
    ("tpm", "server_cpu", "CPU of API servers and etcds, a TPM join", "ms"),
    ("tpm", "node_cpu", "CPU of the nodes, a TPM join", "ms"),
    ("tpm", "controller_requests", "requests of the controller, a TPM join", ""),
    ("tpm", "controller_writes", "of these, writes", ""),
    ("tpm", "node_requests", "requests of the node, a TPM join", ""),
    ("tpm", "resident", "memory of the controller (RSS)", "MiB"),
    ("one-step", "rate", "one-step joins a second", "/s"),
    ("one-step", "controller_cpu", "CPU of the controller, a one-step join", "ms"),
    ("one-step", "server_cpu", "CPU of API servers and etcds, a one-step join", "ms"),
    ("cold", "wall", "cold TPM join, wall", "ms"),
    ("cold", "cpu", "cold TPM join, CPU", "ms"),
    ("cold persistent", "wall", "the same where the TPM keeps its EK, wall", "ms"),
    ("cold persistent", "cpu", "the same where the TPM keeps its EK, CPU", "ms"),
    ("warm", "wall", "warm `credential`, wall", "ms"),
    ("webhook", "wall", "admission webhook, a call", "ms"),
    ("webhook", "cpu", "admission webhook, CPU of the controller a call", "ms"),
)


def main(arguments: list[str], tools: Tools) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=__doc__)
    parser.add_argument("commit", help="the other one, such as a tag")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=sorted(set(CASES) & set(COMPARED)), default=list(COMPARED))
    parser.add_argument("--from-last", action="store_true", help="measure nothing")
    parser.add_argument("--no-write", action="store_true", help="show, and leave files alone")
    add_sizes(parser, SIZES)
    options = parser.parse_args(arguments)
    run = Run.read(LAST) if options.from_last else compare(options, tools)
    if not options.no_write:
        run.write(LAST)
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "compare", write(run)), encoding="utf-8")
    print(write(run))
    return 0


def compare(options: argparse.Namespace, tools: Tools) -> Run:
    commits = f"{git(ROOT, 'rev-parse', '--short=8', options.commit)} {commit_of(ROOT)}"
    with (
        tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name,
        installed_commit(options.commit, Path(name)) as other,
    ):
        cases = in_turns(other, options.cases, read_sizes(options), options.pairs)
    return Run(datetime.now(UTC).date().isoformat(), commits, describe(tools.assets), cases)


def in_turns(other: Path, names: Sequence[str], sizes: Sizes, pairs: int) -> dict[str, Case]:
    """Measure each case of both, one directly after the other; give one sample a pair."""
    cases: dict[str, Case] = {}
    for pair in range(pairs):
        print(f"pair {pair + 1} of {pairs}", file=sys.stderr, flush=True)
        for name in names:
            for prefix, python in ((BEFORE, other), (NOW, Path(sys.executable))):
                for case in run_case(python, name, sizes):
                    known = cases.setdefault(prefix + case.name, Case(prefix + case.name))
                    known.add(**{key: middle for key in case.samples if (middle := case.median(key)) is not None})
    return cases


def write(run: Run) -> str:
    """Write the table of a comparison."""
    before, now = run.commit.split()
    rows = [
        (title, spread(run.samples(BEFORE + case, key), unit), spread(run.samples(NOW + case, key), unit), shares)
        for case, key, title, unit in ROWS
        if (shares := _shares(run, case, key))
    ]
    machine = "; ".join(f"{what} {said}" for what, said in run.machine.items())
    pairs = max(len(case.samples[key]) for case in run.cases.values() for key in case.samples)
    where = f"Measured on {run.date}, {pairs} pairs. {machine}."
    return "\n".join([*wrapped(where), "", table(["", f"before ({before})", f"now ({now})", "now / before"], rows)])


def _shares(run: Run, case: str, key: str) -> str:
    before, now = run.samples(BEFORE + case, key), run.samples(NOW + case, key)
    if not before or not now or len(before) != len(now):
        return ""
    shares = ratios(now, before)
    return spread(shares, TIMES) if shares else ""
