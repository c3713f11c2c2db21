"""``python -m fuzz [TARGET ...] [--seconds N] [--jobs N] [--list]``: a minute each, and a table."""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from fuzz.catalogue import TARGETS
from fuzz.run import Outcome, run


def main() -> int:
    """Fuzz the targets; the exit status is 1 for a finding and 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz each parser for a while.")
    parser.add_argument("names", nargs="*", metavar="TARGET", help="which (all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time (one a processor)")
    parser.add_argument("--list", action="store_true", help="name the targets and end")
    options = parser.parse_args()
    if options.list:
        print("\n".join(TARGETS))
        return 0
    names: list[str] = options.names or [*TARGETS]
    seconds: int = options.seconds
    unknown = sorted(set(names) - TARGETS.keys())
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; known are {', '.join(TARGETS)}")
    if seconds < 1 or options.jobs < 1:
        parser.error("--seconds and --jobs are at least 1")
    if find_spec("atheris") is None:
        parser.error("atheris is not installed: it has wheels for Linux on x86-64 and CPython 3.11 to 3.13 only")
    with ThreadPoolExecutor(options.jobs) as pool:
        parsers = [pool.submit(run, TARGETS[name], seconds) for name in names]
        print(_ROW.format("target", "executions", "values", "coverage", "result"), flush=True)
        outcomes = [_show(one.result()) for one in parsers]
    found = [one for one in outcomes if one.trouble]
    for one in found:
        print(f"\n{one.name}: {one.reproducer or 'no input was left'}\n{one.trouble}")
    print(f"\n{sum(one.executions for one in outcomes)} inputs, {len(found)} findings")
    return 1 if found else 0


_ROW = "{:<24} {:>12} {:>12} {:>14}  {}"


def _show(one: Outcome) -> Outcome:
    seeds, all_in_all = one.coverage
    coverage = f"{seeds} + {all_in_all - seeds}"
    print(_ROW.format(one.name, one.executions, one.values, coverage, "FOUND" if one.trouble else "clean"), flush=True)
    return one


if __name__ == "__main__":
    sys.exit(main())
