"""``python -m bench growth``: thousands of nodes join one cluster, and what a join costs as it grows.

API servers are real, TPMs are software; everything is on loopback and on the same cores. A tenth as many nodes join a
cluster of their own before and after, because the speed of the machine drifts meanwhile.
"""

from __future__ import annotations

import argparse
import time

from bench.burst import cluster_of, count_requests, provision_in, resident, run, say, start_environment
from bench.joiner import Kind
from bench.page import new_run
from bench.report import PAGE, Case, Run, replaced, spread, where, wrapped
from nodeattest_demo.world import USER, Tools
from tools.markdown_tables import table

SETTLE = 10.0
AT_ONCE = 500
"""Nodes that are on their way at the same time, from ``JOINERS`` processes, each for ``LONGEST`` seconds at most."""
JOINERS = 4
LONGEST = 600
ROWS = (
    ("joins", "joins", ""),
    ("joins that failed", "failed", ""),
    ("joins a second", "rate", ""),
    ("a join takes, median", "latency", "ms"),
    ("CPU of the controller, a join", "controller_cpu", "ms"),
    ("CPU of API servers and etcds, a join", "server_cpu", "ms"),
    ("CPU of the nodes, a join", "node_cpu", "ms"),
    ("requests of the controller, a join", "controller_requests", ""),
    ("requests of the node, a join", "node_requests", ""),
    ("memory of the controller after (RSS)", "resident", "MiB"),
    ("the most that it had", "peak", "MiB"),
)


def main(arguments: list[str], tools: Tools) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench growth", description=__doc__)
    parser.add_argument("--no-write", action="store_true", help="show, and leave files alone")
    parser.add_argument("--nodes", type=int, default=5_000, help="(%(default)s)")
    options = parser.parse_args(arguments)
    few = max(1, options.nodes // 10)
    sizes = {f"{few} nodes": few, f"{options.nodes} nodes": options.nodes, f"{few} nodes again": few}
    result = new_run({name: _grow(tools, name, count) for name, count in sizes.items()}, tools)
    if not options.no_write:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "growth", write(result)), encoding="utf-8")
    print(write(result))
    return 0


def _grow(tools: Tools, name: str, count: int) -> Case:
    """Let nodes join a new cluster at once; a first one, which joins before them, does not count."""
    case = Case(name)
    with start_environment(tools) as env:

        def join(numbers: range) -> None:
            nodes = provision_in(env.world, Kind.TPM, numbers)
            time.sleep(SETTLE)
            recorded = env.recorder()
            burst = run(
                Kind.TPM,
                cluster_of(env.world.workload),
                nodes,
                pids=env.pids,
                processes=min(JOINERS, len(nodes)),
                at_once=AT_ONCE,
                seconds=LONGEST,
            )
            time.sleep(SETTLE)
            case.samples = {}
            case.add(
                joins=burst.joins,
                **burst.samples,
                **count_requests(recorded(), user=USER, joins=len(numbers)),
                resident=resident(env.controller_pid),
                peak=resident(env.controller_pid, "VmHWM"),
            )

        join(range(1, 2))
        join(range(2, 2 + count))
    say(f"{name}: {case.samples['rate'][0]:.1f}/s")
    return case


def write(result: Run) -> str:
    """Write the page's section."""
    cases = result.cases.values()
    rows = [
        (title, *(spread(case.samples.get(key), unit) for case in cases))
        for title, key, unit in ROWS
        if any(key in case.samples for case in cases)
    ]
    text = f"{where(result)} {AT_ONCE} nodes are on their way at the same time."
    return "\n\n".join([wrapped(text), table(["", *result.cases], rows)])
