"""``python -m fuzz [TARGET ...] [--seconds N] [--jobs N] [--list]``: a minute each, and a table.

``costs`` in place of a target's name looks for the dearest input of each handler; ``costs/NAME`` of one; ``strangers``
of those that are reached without authentication, or with a bootstrap token only.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from fuzz.catalogue import TARGETS
from fuzz.costs.run import CostOutcome, search
from fuzz.costs.table import HANDLERS
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
        print("\n".join((*TARGETS, *_GROUPS, *_COSTS)))
        return 0
    asked: list[str] = options.names or [*TARGETS, "costs"]
    names = [name for each in asked for name in _GROUPS.get(each, (each,))]
    seconds: int = options.seconds
    unknown = sorted(set(names) - TARGETS.keys() - _COSTS.keys())
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; known are {', '.join((*TARGETS, *_GROUPS, *_COSTS))}")
    if seconds < 1 or options.jobs < 1:
        parser.error("--seconds and --jobs are at least 1")
    if find_spec("atheris") is None and TARGETS.keys() & set(names):
        parser.error("atheris is not installed: it has wheels for Linux on x86-64 and CPython 3.11 to 3.13 only")
    outcomes: list[Outcome | CostOutcome] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        parsers = [pool.submit(run, TARGETS[name], seconds) for name in names if name in TARGETS]
        if parsers:
            print(_ROW.format("target", "executions", "values", "coverage", "result"), flush=True)
        outcomes += [_show(one.result()) for one in parsers]
        # One at a time: two searches would measure each other.
        costs = [_COSTS[name] for name in names if name in _COSTS]
        if costs:
            print(_COST_ROW.format("costs of", "executions", "CPU", "memory", "result"), flush=True)
        outcomes += [_show_cost(search(each, seconds)) for each in costs]
    found = [one for one in outcomes if one.trouble]
    for one in found:
        print(f"\n{one.name}: {one.reproducer or 'no input was left'}\n{one.trouble}")
    print(f"\n{sum(one.executions for one in outcomes)} inputs, {len(found)} findings")
    return 1 if found else 0


_ROW = "{:<24} {:>12} {:>12} {:>14}  {}"
_COST_ROW = "{:<24} {:>12} {:>18} {:>18}  {}"
_COSTS = {f"costs/{name}": handler for name, handler in HANDLERS.items()}
_GROUPS = {"costs": tuple(_COSTS), "strangers": tuple(name for name, each in _COSTS.items() if each.strangers)}


def _show(one: Outcome) -> Outcome:
    seeds, all_in_all = one.coverage
    coverage = f"{seeds} + {all_in_all - seeds}"
    print(_ROW.format(one.name, one.executions, one.values, coverage, "FOUND" if one.trouble else "clean"), flush=True)
    return one


def _show_cost(one: CostOutcome) -> CostOutcome:
    bound = HANDLERS[one.name]
    cpu = f"{one.milliseconds:.1f} of {bound.milliseconds:g} ms"
    memory = f"{one.mebibytes:.1f} of {bound.mebibytes:g} MiB"
    print(_COST_ROW.format(one.name, one.executions, cpu, memory, "FOUND" if one.trouble else "clean"), flush=True)
    return one


if __name__ == "__main__":
    sys.exit(main())
