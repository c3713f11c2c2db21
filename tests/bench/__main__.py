"""``python -m bench NAME …``: each measurement has options of its own, and ``--help``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from bench import growth, neighbours, uploads
from bench.chaos import command as chaos
from bench.figures import table
from bench.page import command as page
from nodeattest_cli.errors import UserError
from nodeattest_demo.world import Tools, find_tools

RUNS: dict[str, Callable[[list[str], Tools], int]] = {
    "page": page.main,
    "growth": growth.main,
    "chaos": chaos.main,
    "uploads": uploads.main,
}
"""What needs API servers, and takes minutes."""
NAMES = (*RUNS, "neighbours")


def main() -> int:
    """Measure what is named; the exit status is 1 for a figure over its bound and 2 for a wrong call."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure. API servers are real where KUBEBUILDER_ASSETS names a folder with etcd and "
        "kube-apiserver (page: kube-controller-manager, too), else the sandbox's.",
    )
    parser.add_argument("name", choices=NAMES)
    options, _ = parser.parse_known_args(sys.argv[1:2])
    if options.name in RUNS:
        tools = _tools()
        return 2 if tools is None else RUNS[options.name](sys.argv[2:], tools)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(sys.argv[1:])
    figures = neighbours.measure()
    print(json.dumps({"figures": [one.to_json() for one in figures]}, indent=2) if options.json else table(figures))
    over = [one.name for one in figures if one.is_over]
    if over:
        print(f"over the bound: {', '.join(over)}", file=sys.stderr)
    return 1 if over else 0


def _tools() -> Tools | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    try:
        return find_tools(Path(sysconfig.get_path("scripts")), provider="tpm", assets=Path(assets) if assets else None)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return None


if __name__ == "__main__":
    sys.exit(main())
