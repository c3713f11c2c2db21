"""``python -m images.controller``: writes the archive and its bill of materials; ``lock`` renews the Debian lock."""

from __future__ import annotations

import argparse
from pathlib import Path

from images.controller import contents
from images.controller.build import CACHE, DEBIAN_LOCK, TREE, build_from_tree
from images.controller.debian import write_lock


def main() -> None:
    """Build, or renew the lock."""
    parser = argparse.ArgumentParser(prog="python -m images.controller", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("build", "lock"), default="build")
    parser.add_argument("--out", type=Path, default=TREE / "dist", help="where archive and SBOM go (%(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="(%(default)s)")
    options = parser.parse_args()
    if options.action == "lock":
        write_lock(DEBIAN_LOCK, contents.DEBIAN_PACKAGES)
        return
    built = build_from_tree(options.out, options.cache)
    print(f"{built.archive}\n{built.sbom}\n{built.digest}")


if __name__ == "__main__":
    main()
