"""``python -m bench growth``: thousands of nodes in one cluster, and nodes of hundreds of clusters, at once.

One cluster is on real API servers. Of many clusters the management cluster is real, and the workload clusters are the
sandbox's. TPMs are software. Everything is on loopback and on the same cores. ``--from-last`` measures nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import UTC, datetime

from bench.growth import many_clusters, one_cluster, report
from bench.growth.sizes import Sizes
from bench.page.command import PAGE, ROOT, commit_of
from bench.page.machine import describe
from bench.page.numbers import replaced
from bench.page.samples import Case, Run
from nodeattest_cli.demo.tools import Tools

LAST = ROOT / "bench" / "growth" / "last.json"
PARTS = {"one-cluster": one_cluster.measure, "many-clusters": many_clusters.measure}


def main(arguments: list[str], tools: Tools) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench growth", description=__doc__)
    parser.add_argument(
        "--parts", nargs="+", choices=sorted(PARTS), default=list(PARTS), help="others stay as they were"
    )
    parser.add_argument("--from-last", action="store_true", help="measure nothing")
    parser.add_argument("--no-write", action="store_true", help="show, and leave files alone")
    for name, value in vars(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help="(%(default)s)")
    options = parser.parse_args(arguments)
    sizes = replace(Sizes(), **{name: vars(options)[name] for name in vars(Sizes())})
    run = Run.read(LAST) if options.from_last else measure(tools, sizes, options.parts)
    if not options.no_write:
        run.write(LAST)
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "growth", report.write(run)), encoding="utf-8")
    print(report.write(run))
    return 0


def measure(tools: Tools, sizes: Sizes, parts: list[str]) -> Run:
    said = (
        f"{sizes.at_once} nodes are on their way at the same time. Each of the {sizes.clusters} clusters has "
        f"{sizes.machines} Machines, of which {sizes.joins} join through one controller and {sizes.joins} through "
        f"{sizes.replicas} that share the clusters."
    )
    setting = Case("setting", notes={"said": said})
    setting.add(clusters=sizes.clusters, machines=sizes.machines)
    kept = Run.read(LAST).cases if LAST.exists() else {}
    others = set(PARTS) - set(parts)
    cases = {name: case for name, case in kept.items() if case.notes.get("part") in others}
    for part in parts:
        for case in PARTS[part](tools, sizes):
            case.notes["part"] = part
            cases[case.name] = case
    cases["setting"] = setting
    return Run(datetime.now(UTC).date().isoformat(), commit_of(ROOT), describe(tools.assets), cases)
