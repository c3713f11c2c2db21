"""``python -m bench page``: measure every case in one run, and write docs/performance.md and its plot.

``--from-last`` measures nothing, and writes the page from the figures of the last run (tests/bench/page/last.json).
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

from bench.burst import say
from bench.page import plot, report
from bench.page.case import add_sizes, read_sizes
from bench.page.machine import describe
from bench.page.measures import PAGE_CASES, Sizes
from bench.page.samples import Case, Run
from nodeattest_demo.world import Tools

ROOT = Path(__file__).parents[3]
LAST = Path(__file__).with_name("last.json")
PAGE = ROOT / "docs" / "performance.md"
PICTURE = PAGE.with_name(report.PLOT)


def main(arguments: list[str], tools: Tools) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench page", description=__doc__)
    parser.add_argument("--from-last", action="store_true", help="measure nothing")
    parser.add_argument("--cases", nargs="+", choices=sorted(PAGE_CASES), help="others stay as they were")
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
    print(report.goals(run))
    return 0


def measure(tools: Tools, sizes: Sizes, names: list[str] | None) -> Run:
    """Run the cases, each in a process of its own; those that take turns are one case."""
    cases = {case.name: case for name in names or PAGE_CASES for case in run_case(sys.executable, name, sizes)}
    if names and LAST.exists():
        cases = Run.read(LAST).cases | cases
    return Run(datetime.now(UTC).date().isoformat(), commit_of(ROOT), describe(tools.assets), cases)


def run_case(python: str | Path, name: str, sizes: Sizes) -> list[Case]:
    """Run one case by an interpreter; what it says on standard error is seen."""
    words = [f"--{key.replace('_', '-')}={value}" for key, value in vars(sizes).items()]
    started = time.monotonic()
    done = subprocess.run(
        [python, "-m", "bench.page.case", name, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    say(f"{name}: {time.monotonic() - started:.0f} s")
    return [Case(**one) for one in json.loads(done.stdout)]


def commit_of(tree: Path) -> str:
    return git(tree, "rev-parse", "--short=8", "HEAD")


def git(tree: Path, *words: str) -> str:
    found = shutil.which("git")
    assert found is not None, "git is not installed"
    return subprocess.run([found, *words], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()
