"""``python -m images.controller``: writes the archives and their bills of materials; ``lock`` renews Debian's locks."""

from __future__ import annotations

import argparse
from pathlib import Path

from images.controller.build import build_from_tree
from images.debian import ARCHITECTURES, CACHE, TREE, write_lock


def main() -> None:
    """Build, or renew the locks."""
    parser = argparse.ArgumentParser(prog="python -m images.controller", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("build", "lock"), default="build")
    parser.add_argument("--out", type=Path, default=TREE / "dist", help="where archives and SBOMs go (%(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="(%(default)s)")
    options = parser.parse_args()
    if options.action == "lock":
        for architecture in ARCHITECTURES.values():
            write_lock(architecture)
        return
    for built in build_from_tree(options.out, options.cache):
        print(f"{built.archive}\n{built.sbom}\n{built.digest}")


if __name__ == "__main__":
    main()
