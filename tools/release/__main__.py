"""``python -m tools.release``: writes a release. docs/install.md verifies one."""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from images.debian import ARCHITECTURES, TREE
from images.requirements import PYTHON_LOCK
from nodeattest_providers import __version__
from nodeattest_providers.version import UNKNOWN, of_checkout
from tools.release.artefacts import KINDS
from tools.release.provenance import private_key, seal

_MEBIBYTE: Final = 1 << 20


def main() -> None:
    """Parse the arguments and write the release."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--out", type=Path, default=TREE / "dist", help="an empty or new folder (%(default)s)")
    parser.add_argument("--only", action="append", choices=sorted(KINDS), help="a kind of artefact; all by default")
    parser.add_argument("--key", type=Path, help="private Ed25519 key in PEM that signs")
    options = parser.parse_args()
    _write(options.out, options.only or KINDS, options.key)


def _write(out: Path, kinds: Iterable[str], key_file: Path | None) -> None:
    """Build every kind, then seal what was built; nothing is sealed if the checkout changed meanwhile."""
    commit = _committed()
    key = None
    if key_file is not None:
        try:
            key = private_key(key_file.read_bytes())
        except OSError as error:
            raise SystemExit(f"{key_file}: {error.strerror}") from None
    if out.is_dir() and any(out.iterdir()):
        raise SystemExit(f"expected an empty folder, got files in {out}: remove them")
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    for kind in kinds:
        since = time.monotonic()
        KINDS[kind](out)
        print(f"{kind}: {time.monotonic() - since:.0f} s", flush=True)
    if (now := _committed()) != commit:
        raise SystemExit(f"expected the commit {commit} to the end, got {now}: remove {out} and begin again")
    files = [PYTHON_LOCK, *(architecture.lock for architecture in ARCHITECTURES.values())]
    locks = {file.relative_to(TREE).as_posix(): file for file in files}
    seal(out, version=__version__, commit=commit, locks=locks, key=key)
    files = [file for file in out.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files) / _MEBIBYTE
    signed = "signed" if key else "not signed: nobody can verify it (KEY=...)"
    print(f"{out}: version {__version__}, commit {commit}, {len(files)} files, {size:.0f} MiB, {signed}")
    print(f"{time.monotonic() - begun:.0f} s in all")


def _committed() -> str:
    """Return the commit of the checkout; ends this program where something is not committed, or not known to git."""
    commit = of_checkout()
    if commit == UNKNOWN:
        raise SystemExit("expected a checkout with its history, got none that git knows")
    command = ["git", "status", "--porcelain"]
    changes = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True).stdout.splitlines()
    if changes or commit.endswith("-dirty"):
        first = f", such as {changes[0][3:]}" if changes else ""
        raise SystemExit(f"expected a commit without changes, got {len(changes)}{first}: commit or remove them")
    return commit


if __name__ == "__main__":
    main()
