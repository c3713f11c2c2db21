"""``python -m bench.page.case NAME``: one case in a process of its own; prints its samples as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
from dataclasses import asdict, fields, replace
from pathlib import Path

from bench.page.measures import CASES, Sizes
from nodeattest_cli.errors import UserError
from nodeattest_demo.world import find_tools

DEFAULTS = Sizes()


def add_sizes(parser: argparse.ArgumentParser, sizes: Sizes = DEFAULTS) -> None:
    """Let every size be given on the command line."""
    for name, value in vars(sizes).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float if name == "settle" else int, default=value)


def read_sizes(options: argparse.Namespace) -> Sizes:
    return replace(Sizes(), **{each.name: vars(options)[each.name] for each in fields(Sizes)})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page.case")
    parser.add_argument("name", choices=sorted(CASES))
    add_sizes(parser)
    options = parser.parse_args()
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    try:
        tools = find_tools(Path(sysconfig.get_path("scripts")), provider="tpm", assets=Path(assets) if assets else None)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(json.dumps([asdict(case) for case in CASES[options.name](tools, read_sizes(options))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
