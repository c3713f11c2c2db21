"""``python -m tools.release``: writes a release, or verifies one with ``--verify KEY``."""

from __future__ import annotations

import argparse
from pathlib import Path

from images.controller.build import DEBIAN_LOCK, PYTHON_LOCK, TREE
from nodeattest_providers import __version__
from nodeattest_providers.build_commit import UNKNOWN, of_checkout
from tools.release.artefacts import KINDS
from tools.release.provenance import VerificationError, seal, verify


def main() -> None:
    """Write or verify."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--out", type=Path, default=TREE / "dist", help="an empty or new folder (%(default)s)")
    parser.add_argument("--only", action="append", choices=sorted(KINDS), help="a kind of artefact; all by default")
    parser.add_argument("--key", type=Path, help="private Ed25519 key in PEM that signs")
    parser.add_argument("--verify", type=Path, metavar="KEY", help="public key in PEM: verify the folder")
    parser.add_argument("--version", metavar="VERSION", help="with --verify: the release must be of this version")
    parser.add_argument("--commit", metavar="SHA", help="with --verify: the release must be of this commit")
    options = parser.parse_args()
    out: Path = options.out
    if options.verify is not None:
        try:
            key = options.verify.read_bytes()
            print("\n".join(verify(out, key, version=options.version, commit=options.commit)))
        except (VerificationError, OSError) as error:
            raise SystemExit(f"{out}: {error}") from None
        return
    if options.version or options.commit:
        parser.error("--version and --commit go with --verify")
    commit = of_checkout()
    if commit == UNKNOWN or commit.endswith("-dirty"):
        raise SystemExit(f"expected a commit without changes, got {commit}: commit or stash them")
    if out.is_dir() and any(out.iterdir()):
        raise SystemExit(f"expected an empty folder, got files in {out}: remove them")
    out.mkdir(parents=True, exist_ok=True)
    for kind in options.only or KINDS:
        KINDS[kind](out)
    locks = {one.relative_to(TREE).as_posix(): one for one in (DEBIAN_LOCK, PYTHON_LOCK)}
    key = options.key.read_bytes() if options.key else None
    seal(out, version=__version__, commit=commit, locks=locks, key=key)


if __name__ == "__main__":
    main()
