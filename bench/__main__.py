"""``python -m bench [warm and joins | throughput | wheel] [--json]``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from bench import joins, throughput, wheel
from bench.figures import Figure, table
from bench.scene import Scene, opened
from nodeattest_cli.demo.tools import find_tools
from nodeattest_cli.errors import UserError

IN_CLUSTERS: dict[str, Callable[[Scene], list[Figure]]] = {"joins": joins.measure, "throughput": throughput.measure}
NAMES = (*IN_CLUSTERS, "wheel")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure; real API servers where KUBEBUILDER_ASSETS is set."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(NAMES)} (all)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    names: list[str] = options.names or list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"no measurement {', '.join(unknown)}; known are {', '.join(NAMES)}")
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    try:
        tools = find_tools(Path(sysconfig.get_path("scripts")), provider="tpm", assets=Path(assets) if assets else None)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for name in names:
        if name == "wheel":
            figures += wheel.measure()
            continue
        with opened(tools) as scene:
            figures += IN_CLUSTERS[name](scene)
    print(json.dumps({"figures": [one.to_json() for one in figures]}, indent=2) if options.json else table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
