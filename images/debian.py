"""Debian 13's packages, of which both images are made: a lock for each architecture, and the files of what it names.

Promises: no package is unpacked whose SHA-256 is not the lock's; apt's signatures are checked at each download, too.
mmdebstrap downloads and dpkg-deb unpacks, for either architecture, on any release of Debian. No maintainer script runs,
and nothing needs root. What runs at build time is the packages' own Python for the machine that builds: modules are
compiled and layers compressed by it, so the bytes do not depend on the builder's Python and zlib.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).parents[1]
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodeattest" / "images"
PYTHON: Final = "3.13"
_SUITE: Final = "trixie"
_REMEDY: Final = ". Debian removes replaced versions: run make lock-images, and review what it changes"
_PACKAGES: Final = (
    "base-files",  # /etc/os-release: scanners read it
    "ca-certificates",  # clouds' APIs
    "libbz2-1.0",  # bz2, which shutil imports
    "libc6",
    "libexpat1",  # xml, for clouds' answers
    "libffi8",  # ctypes
    "libgcc-s1",  # threads' cancellation; extension modules
    "liblzma5",  # lzma, which shutil imports
    f"libpython{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    "libssl3t64",  # ssl, hashlib
    "libzstd1",  # libssl3t64 is linked with it
    f"python{PYTHON}-minimal",
    "zlib1g",
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A processor, by the names that others give it."""

    debian: str
    machine: str
    """As uname, wheels and rpm say it; with ``-linux-gnu`` the folder of Debian's libraries."""
    loader: str

    @property
    def lock(self) -> Path:
        """The lock of its Debian packages."""
        return Path(__file__).with_name(f"debian-{self.debian}.lock")


ARCHITECTURES: Final = {
    "amd64": Architecture("amd64", "x86_64", "ld-linux-x86-64.so.2"),
    "arm64": Architecture("arm64", "aarch64", "ld-linux-aarch64.so.1"),
}


@dataclass(frozen=True, slots=True)
class Deb:
    """One line of a lock."""

    name: str
    version: str
    sha256: str


def run(*words: str | Path, given: bytes = b"", remedy: str = "") -> bytes:
    """Run a program; returns its standard output, and ends this program with what it wrote if it fails."""
    done = subprocess.run(words, input=given, capture_output=True, check=False)
    if done.returncode:
        written = (done.stdout + done.stderr)[-4000:].decode(errors="replace")
        sys.exit(f"{' '.join(map(str, words))}\n{written}\nexit code {done.returncode}{remedy}")
    return done.stdout


def native() -> Architecture:
    """Return the architecture of this machine."""
    for architecture in ARCHITECTURES.values():
        if architecture.machine == platform.machine():
            return architecture
    sys.exit(f"expected x86-64 or arm64, got {platform.machine()}: build on such a machine")


def commit_time() -> int:
    """Return SOURCE_DATE_EPOCH, or the time of the commit: seconds since 1970."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", TREE, "log", "-1", "--format=%ct"))


def cached(cache: Path, kind: str, recipe: bytes, make: Callable[[Path], None]) -> Path:
    """Return the folder that ``make`` fills: made aside and kept, one for each recipe and state of this package."""
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    name = f"{kind}-{hashlib.sha256(b''.join([recipe, *sources])).hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / name).is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                made = Path(work) / name
                made.mkdir()
                make(made)
                made.rename(cache / name)
    return cache / name


def read_lock(architecture: Architecture) -> list[Deb]:
    """Read ``name version sha256`` of each line that is no comment."""
    lines = architecture.lock.read_text(encoding="utf-8").splitlines()
    return [Deb(*line.split()) for line in lines if not line.startswith("#")]


def write_lock(architecture: Architecture) -> None:
    """Ask Debian's mirrors for today's versions; apt verifies them."""
    with tempfile.TemporaryDirectory() as folder:
        debs = [deb for deb, _ in _downloaded(architecture, _PACKAGES, Path(folder))]
    head = f"# Written by `make lock-images`: name, version, SHA-256 of Debian 13's packages ({architecture.debian}).\n"
    rows = sorted(f"{deb.name} {deb.version} {deb.sha256}\n" for deb in debs if deb.name in _PACKAGES)
    architecture.lock.write_text(head + "".join(rows), encoding="utf-8")


def debian(architecture: Architecture, cache: Path) -> Path:
    """Return a folder with the locked packages' files: ``root``, all of them; ``packages/NAME``, those of one.

    ``control/NAME`` is a package's control paragraph.
    """

    def make(folder: Path) -> None:
        (folder / "control").mkdir()
        for deb, file in _fetched(architecture, cache / "debs"):
            (folder / "control" / deb.name).write_bytes(run("dpkg-deb", "--field", file))
            for target in (folder / "packages" / deb.name, folder / "root"):
                target.mkdir(parents=True, exist_ok=True)
                run("dpkg-deb", "--extract", file, target)

    return cached(cache, f"debian-{architecture.debian}", architecture.lock.read_bytes(), make)


def interpreter(cache: Path, *words: str | Path, given: bytes = b"") -> bytes:
    """Run the packages' Python for this machine's architecture, by its own loader and libraries, without a chroot."""
    architecture = native()
    root = debian(architecture, cache) / "root"
    libraries, python = root / "usr/lib" / f"{architecture.machine}-linux-gnu", root / "usr/bin" / f"python{PYTHON}"
    loader = [libraries / architecture.loader, "--library-path", libraries, "--argv0", python, python]
    environment = ["/usr/bin/env", "--ignore-environment", "PYTHONHASHSEED=0", "LC_ALL=C.UTF-8"]
    return run(*environment, *loader, "-B", "-s", "-S", *words, given=given)


def _fetched(architecture: Architecture, cache: Path) -> list[tuple[Deb, Path]]:
    """Return the locked packages, from the cache or Debian's mirrors; each has the hash of the lock."""
    cache.mkdir(exist_ok=True)
    locked = read_lock(architecture)
    if missing := [deb for deb in locked if _hash(cache / f"{deb.sha256}.deb") != deb.sha256]:
        with tempfile.TemporaryDirectory() as folder:
            names = [f"{deb.name}={deb.version}" for deb in missing]
            loaded = dict(_downloaded(architecture, names, Path(folder)))
            for deb in missing:
                if deb not in loaded:
                    sys.exit(f"expected {deb} of Debian's mirrors, got others: do not use this mirror")
                shutil.copy(loaded[deb], cache / deb.sha256)
                (cache / deb.sha256).rename(cache / f"{deb.sha256}.deb")
    return [(deb, cache / f"{deb.sha256}.deb") for deb in locked]


def _downloaded(architecture: Architecture, names: list[str] | tuple[str, ...], folder: Path) -> list[tuple[Deb, Path]]:
    """Download packages and what they depend on; mmdebstrap knows the mirrors of a suite and of its updates."""
    options = ["--quiet", "--mode=chrootless", "--variant=extract", f"--architectures={architecture.debian}"]
    options += ["--skip=essential/unlink,cleanup/apt", f"--include={','.join(names)}"]  # the files stay in apt's cache
    run("mmdebstrap", *options, _SUITE, folder / "root", remedy=_REMEDY)
    debs: list[tuple[Deb, Path]] = []
    for file in sorted((folder / "root/var/cache/apt/archives").glob("*.deb")):
        name, version = run("dpkg-deb", "--show", "--showformat=${Package} ${Version}", file).decode().split()
        debs.append((Deb(name, version, _hash(file)), file))
    return debs


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
