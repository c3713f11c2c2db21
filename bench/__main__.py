"""``python -m bench [NAME ...] [--json]``, for all small measurements or some; others have options of their own.

``bench page|growth|soak|chaos|uploads …``: each takes minutes, and ``--help``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from bench import clouds, discovery, flood, issuer, neighbours, sidecar, uploads, wheel
from bench.chaos import command as chaos
from bench.environment import start_environment
from bench.figures import Figure, table
from bench.growth import command as growth
from bench.page import command as page
from bench.soak import command as soak
from nodeattest_cli.demo.tools import Tools, find_tools
from nodeattest_cli.errors import UserError

ALONE: dict[str, Callable[[], list[Figure]]] = {
    "clouds": clouds.measure,
    "discovery": discovery.measure,
    "issuer": issuer.measure,
    "neighbours": neighbours.measure,
    "sidecar": sidecar.measure,
    "wheel": wheel.measure,
}
RUNS: dict[str, Callable[[list[str], Tools], int]] = {
    "page": page.main,
    "growth": growth.main,
    "soak": soak.main,
    "chaos": chaos.main,
    "uploads": uploads.main,
}
"""What runs for minutes, with options of its own."""
NAMES = ("flood", *ALONE)
FLOOD = 2_000
"""Requests: enough for a dozen joins beside them."""


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in RUNS:
        tools = _tools()
        return 2 if tools is None else RUNS[sys.argv[1]](sys.argv[2:], tools)
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure; docs/performance.md says what. API servers are real where KUBEBUILDER_ASSETS names a "
        "folder with etcd and kube-apiserver (page: kube-controller-manager, too), else the sandbox's.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which of {', '.join(NAMES)} (all), or one of {', '.join(RUNS)}, which take minutes and have --help",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--flood-requests", type=int, default=FLOOD, metavar="N", help="of flood (%(default)s)")
    options = parser.parse_args()
    names: list[str] = options.names or list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"no measurement {', '.join(unknown)}; known are {', '.join(NAMES)}")
    tools = _tools() if set(names) - ALONE.keys() else None
    if tools is None and set(names) - ALONE.keys():
        return 2
    figures: list[Figure] = []
    for name in names:
        if name in ALONE or tools is None:
            figures += ALONE[name]()
            continue
        with start_environment(tools) as env:
            figures += flood.measure(env, options.flood_requests)
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
