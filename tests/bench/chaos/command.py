"""``python -m bench chaos``: the command line."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from bench.chaos.run import Plan, Result, chaos
from bench.chaos.schedule import Kind
from bench.figures import table
from nodeattest_demo.world import Tools

LONG = 10.0
"""Minutes from which Leases last as long as by default."""


def main(arguments: list[str], tools: Tools) -> int:
    """Run it; the exit status is 1 if a law was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m bench chaos",
        description="Faults under a seed, and a checker of every certificate. Needs KUBEBUILDER_ASSETS and root.",
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="draws order and targets of the faults (%(default)s)")
    parser.add_argument(
        "--nodes", type=int, default=6, help="whole machines, half of them from the start (%(default)s)"
    )
    parser.add_argument("--lease", type=int, help="leaseDuration in seconds (6; 15 from 10 minutes on)")
    parser.add_argument("--only", action="append", choices=[kind.name for kind in Kind], help="these faults only")
    parser.add_argument("--logs", type=Path, help="a folder that keeps the logs of the replicas and servers")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(arguments)
    if tools.assets is None:
        parser.error("set KUBEBUILDER_ASSETS: API servers and etcd that can be killed are real ones")
    kinds = tuple(Kind[name] for name in options.only) if options.only else tuple(Kind)
    lease = options.lease or (15 if options.minutes >= LONG else 6)
    plan = Plan(options.minutes * 60, options.seed, options.nodes, lease, kinds, logs=options.logs)
    result = chaos(tools, plan)
    print(json.dumps(to_json(result), indent=2) if options.json else show(result))
    return 1 if any(verdict.violations for verdict in result.verdicts) else 0


def to_json(result: Result) -> dict[str, object]:
    """Return everything as JSON."""
    return {
        "verdicts": [asdict(one) for one in result.verdicts],
        "faults": [asdict(one) for one in result.faults],
        "figures": [one.to_json() for one in result.figures],
    }


def show(result: Result) -> str:
    """Write faults, figures and verdicts."""
    lines = [
        f"{time.strftime('%H:%M:%S', time.localtime(one.began))} {one.kind}, {one.ended - one.began:.0f} s: {one.on}"
        f"{f' ({one.note})' if one.note else ''}"
        for one in result.faults
    ]
    lines += ["", table(result.figures), ""]
    for one in result.verdicts:
        word = "BROKEN" if one.violations else "holds"
        lines.append(f"{word}: {one.law} ({one.checked} checked, {len(one.unknown)} unknown)")
        lines += [f"  {said}" for said in one.violations[:10]]
        lines += [f"  unknown: {said}" for said in one.unknown[:3]]
    return "\n".join(lines)
