"""Machines without Python that run the packaged agent: chroots of Debian releases, and some that hold nothing else.

A call runs in mount and process namespaces of the test's own; the machine sees this one's loopback, /dev, /proc and the
folder of temporary files, where the TPMs' sockets are. Chroots are unpacked from tarballs that are made once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from needs import lacks, not_possible

from images.debian import ARCHITECTURES, CACHE, TREE, native

HOME: Final = "opt/nodeattest"
PYTHON: Final = f"/{HOME}/current/bin/python3.13"
NATIVE: Final = native().debian
[FOREIGN] = ARCHITECTURES.keys() - {NATIVE}
EMULATOR: Final = f"qemu-{ARCHITECTURES[FOREIGN].machine}-static"
_ENTER: Final = """\
set -e
root=$1; shift
for shared in /dev /proc "$SHARED"; do mkdir -p "$root$shared"; mount --bind "$shared" "$root$shared"; done
exec chroot "$root" "$@"
"""


def needs(*programs: str) -> None:
    """Skip where a machine cannot be made: without root, namespaces or a program of the group ``packages``."""
    if os.geteuid() != 0:
        lacks("root, for a chroot")
    if subprocess.run(["/usr/bin/unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        not_possible("no mount namespace can be made")
    for program in programs:
        if shutil.which(program) is None:
            lacks(f"{program} is not installed: tools/system-packages packages")


def build(out: Path, *options: str) -> dict[str, Path]:
    """Build packages of this tree; returns them by their kind."""
    command = [sys.executable, "-m", "images.node", "--out", out, *options]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return by_kind(out.iterdir())


def by_kind(files: Iterable[Path]) -> dict[str, Path]:
    """Return files by architecture and suffix, such as ``amd64.deb``."""
    found: dict[str, Path] = {}
    for file in files:
        for architecture in ARCHITECTURES.values():
            if architecture.debian in file.name or architecture.machine in file.name:
                found[f"{architecture.debian}{file.suffix}"] = file
    return found


def debian(suite: str, into: Path, *, variant: str = "essential", include: str = "dpkg,systemd") -> None:
    """Unpack a release's essential packages and ``include``, no Python; with variant ``extract`` ``include`` only."""
    CACHE.mkdir(parents=True, exist_ok=True)
    kept = CACHE / f"root-{suite}-{variant}-{include.replace(',', '+')}.tar"
    with (CACHE / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            made = kept.with_suffix(".new.tar")
            command = ["mmdebstrap", "--quiet", f"--variant={variant}", f"--include={include}", suite, str(made)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            made.rename(kept)
    into.mkdir()
    subprocess.run(["/usr/bin/tar", "-xf", kept, "-C", into, "--exclude=./dev/*"], check=True)
    assert not list(into.glob("usr/bin/python*"))


def _in_namespaces(root: Path, *words: str) -> tuple[str, ...]:
    """Return a command that runs ``words`` with ``root`` as its root directory."""
    return ("env", f"SHARED={tempfile.gettempdir()}", "unshare", "--mount", "sh", "-c", _ENTER, "sh", str(root), *words)


@dataclass(frozen=True, slots=True)
class Machine:
    """A root directory, and the path of the agent in it."""

    root: Path
    program: str
    is_emulated: bool = False

    @property
    def agent(self) -> tuple[str, ...]:
        """The command of the agent."""
        return self.command(PYTHON, "-IS", self.program) if self.is_emulated else self.command(self.program)

    def command(self, *words: str) -> tuple[str, ...]:
        """Return the command that runs a program of the machine."""
        emulator = [f"/{EMULATOR}"] if self.is_emulated else []
        return _in_namespaces(self.root, *emulator, *words)

    def python(self, program: str) -> str:
        """Run a program of the agent's interpreter; returns what it printed."""
        return self.run(PYTHON, "-IS", "-c", program).stdout

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program of the machine."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def current(self) -> str:
        """Return the name of the folder of the version that runs."""
        return str(self.path(f"/{HOME}/current").readlink())

    def path(self, name: str) -> Path:
        """Return where a file of the machine is here."""
        return self.root / name.lstrip("/")
