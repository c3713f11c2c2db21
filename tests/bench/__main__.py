"""``python -m bench NAME …``: each measurement has options of its own, and ``--help``."""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from bench import chaos, growth, page
from nodeattest_cli.output import UserError
from nodeattest_demo.world import Tools, find_tools

RUNS: dict[str, Callable[[list[str], Tools], int]] = {"page": page.main, "growth": growth.main, "chaos": chaos.main}


def main() -> int:
    """Measure what is named; the exit status is 1 for a broken law and 2 for a wrong call."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure. API servers are real where KUBEBUILDER_ASSETS names a folder with etcd and "
        "kube-apiserver (page: kube-controller-manager, too), else the sandbox's.",
    )
    parser.add_argument("name", choices=RUNS)
    options, _ = parser.parse_known_args(sys.argv[1:2])
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    try:
        tools = find_tools(Path(sysconfig.get_path("scripts")), provider="tpm", assets=Path(assets) if assets else None)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return RUNS[options.name](sys.argv[2:], tools)


if __name__ == "__main__":
    sys.exit(main())
