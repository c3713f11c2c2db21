"""What a release consists of: one row for each kind of artefact."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from images.controller.build import CACHE, TREE, build_from_tree
from nodeattest_providers import __version__
from tools.release.requirements import write_requirements

__all__ = ["KINDS"]

_WHEELS: Final = ("providers", "authenticator", "controller", "cli", "sandbox")


def _wheels(out: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(out)]
    subprocess.run([*command, *(str(TREE / name) for name in _WHEELS)], check=True)
    write_requirements(out)


def _image(out: Path) -> None:
    build_from_tree(out, CACHE)


def _manifests(out: Path) -> None:
    """Pack the folder of kustomizations, without times and owners."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    with tarfile.open(out / f"nodeattest-manifests-{__version__}.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(TREE / "manifests", f"nodeattest-{__version__}/manifests", filter=plain)


KINDS: Final[Mapping[str, Callable[[Path], None]]] = MappingProxyType(
    {
        "wheels": _wheels,
        "image": _image,
        "manifests": _manifests,
    }
)
"""Name to what writes the files of this kind into a folder."""
