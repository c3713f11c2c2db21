"""``python -m bench soak``: the command line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.soak.run import Plan, show, soak
from nodeattest_cli.demo.tools import Tools


def main(arguments: list[str], tools: Tools) -> int:
    """Run a soak; the exit status is 1 if a node was lost or a key certified twice."""
    parser = argparse.ArgumentParser(prog="python -m bench soak")
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--lifetime", default="2m", help="of certificates, as a policy writes it (2m)")
    parser.add_argument("--beat", type=float, default=10.0, help="seconds between a node's requests (10, as a lease)")
    parser.add_argument("--logs", type=Path, help="a folder that keeps the logs of controllers and renewals")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(arguments)
    plan = Plan(options.nodes, options.minutes * 60, options.lifetime, options.beat, options.logs)
    figures, problems = soak(tools, plan)
    if options.json:
        print(json.dumps({"figures": [one.to_json() for one in figures], "problems": problems}, indent=2))
    else:
        print(show(figures, problems))
    return 1 if problems else 0
