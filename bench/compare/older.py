"""Another commit of this repository, installed beside this one: a worktree, and a virtual environment of its own.

Its libraries are those that are installed here, as hard links, so that both commits differ in nothing else; where its
lock file is another one, its own are installed over them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from bench.page.command import ROOT, git

LOCK = "requirements.lock"
OURS = "nodeattest"


@contextmanager
def installed_commit(commit: str, directory: Path) -> Generator[Path]:
    """Install a commit, and return its interpreter; the worktree goes at the end."""
    tree = directory / "tree"
    git(ROOT, "worktree", "add", "--detach", str(tree), commit)
    try:
        yield _install(tree, directory / "venv")
    finally:
        git(ROOT, "worktree", "remove", "--force", str(tree))


def _install(tree: Path, directory: Path) -> Path:
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    here = Path(sysconfig.get_path("purelib"))
    there = directory / here.relative_to(sys.prefix)
    shutil.copytree(here, there, copy_function=_link, dirs_exist_ok=True, ignore=_ours)
    if (tree / LOCK).read_bytes() != (ROOT / LOCK).read_bytes():
        _pip(python, "--require-hashes", "--no-deps", "-r", str(tree / LOCK))
    _pip(python, "--no-deps", "--no-build-isolation", "-e", str(tree))
    return python


def _ours(_folder: str, names: list[str]) -> list[str]:
    """Name what the new environment gets from the other commit."""
    return [name for name in names if name.lstrip("_").startswith(OURS) or name == "__pycache__"]


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _pip(python: Path, *words: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*command, *words], check=True)
