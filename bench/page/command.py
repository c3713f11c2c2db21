"""``python -m bench page``: measure every case in one run, and write docs/performance.md and its plot.

``--from-last`` measures nothing, and writes the page from the figures of the last run (bench/page/last.json).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.growth import scale
from bench.page import plot, report
from bench.page.case import add_sizes, read_sizes
from bench.page.machine import describe
from bench.page.measures import CASES, Sizes
from bench.page.samples import Case, Run
from nodeattest_cli.demo.tools import Tools

ROOT = Path(__file__).parents[2]
LAST = scale.PAGE_RUN
PAGE = ROOT / "docs" / "performance.md"
PICTURE = PAGE.with_name(report.PLOT)
ORDER = ("in-tree", "tpm", "one-step", "alone", "webhook", "in-tree")
"""The in-tree signer comes first and last: whatever slows the machine down meanwhile is in its figures, too."""


def main(arguments: list[str], tools: Tools) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench page", description=__doc__)
    parser.add_argument("--from-last", action="store_true", help="measure nothing")
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), help="others keep the figures of the last run")
    parser.add_argument("--no-write", action="store_true", help="show, and leave files alone")
    add_sizes(parser)
    options = parser.parse_args(arguments)
    if tools.assets is None and not (options.from_last or options.no_write):
        parser.error("the page is of real API servers: set KUBEBUILDER_ASSETS, or show the sandbox's by --no-write")
    run = Run.read(LAST) if options.from_last else measure(tools, read_sizes(options), options.cases)
    if options.no_write:
        print("\n\n".join((report.where(run), report.peers(run), report.alone(run), report.goals(run))))
        return 0
    run.write(LAST)
    PAGE.write_text(report.write(PAGE.read_text(encoding="utf-8"), run), encoding="utf-8")
    PICTURE.write_text(plot.draw(run), encoding="utf-8")
    scale.write_page()
    print(report.goals(run))
    return 0


def measure(tools: Tools, sizes: Sizes, names: list[str] | None) -> Run:
    """Run the cases, each in a process of its own."""
    cases: dict[str, Case] = {}
    for number, name in enumerate(ORDER):
        if names and name not in names:
            continue
        again = name in ORDER[:number]
        for case in run_case(sys.executable, name, sizes, more=("--limited=0",) if again else ()):
            known = cases.setdefault(case.name, Case(case.name))
            for key, values in case.samples.items():
                known.samples.setdefault(key, []).extend(values)
            known.notes |= case.notes
    if names and LAST.exists():
        cases = Run.read(LAST).cases | cases
    return Run(datetime.now(UTC).date().isoformat(), commit_of(ROOT), describe(tools.assets), cases)


def run_case(python: str | Path, name: str, sizes: Sizes, *, more: tuple[str, ...] = ()) -> list[Case]:
    """Run one case by an interpreter; what it says on standard error is seen."""
    words = [f"--{key.replace('_', '-')}={value}" for key, value in vars(sizes).items()]
    started = time.monotonic()
    done = subprocess.run(
        [python, "-m", "bench.page.case", name, *words, *more], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    print(f"{time.strftime('%H:%M:%S')} {name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return [Case(**one) for one in json.loads(done.stdout)]


def commit_of(tree: Path) -> str:
    return git(tree, "rev-parse", "--short=8", "HEAD")


def git(tree: Path, *words: str) -> str:
    found = shutil.which("git")
    assert found is not None, "git is not installed"
    return subprocess.run([found, *words], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()
