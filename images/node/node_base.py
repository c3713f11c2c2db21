"""What the agent's folder holds beside our own code: Debian's CPython and libraries, and the locked Python packages.

Promises: ``base`` returns a folder ``bin/``, ``lib/`` with everything that a call needs, the C library included, and
``packages.txt``, which names where each part comes from. apt checks Debian's signatures, pip the hashes of
``requirements.lock``. The folder is kept for a day: after that Debian may have published security updates.
Leaves to others: our code and the paths (``node_folder``), packages (``build_packages``).
Source: docs/adr/0039-an-agent-with-its-own-interpreter.md.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

__all__ = ["LOADER", "PYTHON", "TREE", "base", "command", "compile_modules", "copy_libraries", "python"]

TREE: Final = Path(__file__).parents[2]
PYTHON: Final = "python3.11"
"""Debian 12's; CI runs the tests with the same minor version."""
LOADER: Final = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}.get(platform.machine(), "")
_SUITE: Final = "bookworm"
_INCLUDE: Final = "python3.11-minimal,libpython3.11-stdlib"
_SHIPPED: Final = (
    "cryptography",
    "cffi",
    "pyyaml",
    "pyasn1",
    "botocore",
    "jmespath",
    "python-dateutil",
    "six",
    "urllib3",
)
"""What nodeattest-agent[aws] needs. Of boto3 the attestor of aws uses botocore's signature only."""
_KEEP_SECONDS: Final = 86400
_PACKAGES: Final = {
    "libc6": ("ld-linux", "libc.", "libdl.", "libm.", "libpthread.", "librt.", "libutil."),
    "libbz2-1.0": ("libbz2.",),
    "libexpat1": ("libexpat.",),
    "libffi8": ("libffi.",),
    "libgcc-s1": ("libgcc_s.",),
    "liblzma5": ("liblzma.",),
    "libssl3": ("libcrypto.", "libssl."),
    "libuuid1": ("libuuid.",),
    "zlib1g": ("libz.",),
}
"""Debian package to the beginnings of its libraries' names; another library ends the build."""
_WANTED: Final = (
    "./usr/bin/python3.11",
    "./usr/lib/python3.11",
    "./usr/share/doc",
    "./lib/*-linux-gnu/*.so*",
    "./usr/lib/*-linux-gnu/*.so*",
)
"""Of the root's files: what is copied from."""


def command(*words: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a program; returns its standard output, and ends this program with what it wrote if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{(done.stdout + done.stderr)[-4000:]}\nexit code {done.returncode}")
    return done.stdout


def base(cache: Path) -> Path:
    """Return the folder, made anew when it is older than a day or when what it is made of changed."""
    if not LOADER:
        sys.exit(f"expected x86-64 or arm64, got {platform.machine()}: build on such a machine")
    recipe = [Path(__file__), TREE / "requirements.lock"]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in recipe) + LOADER.encode()).hexdigest()[:16]
    folder = cache / f"node-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir() or time.time() - folder.stat().st_mtime > _KEEP_SECONDS:
            with tempfile.TemporaryDirectory(dir=cache) as work:
                made = _make(Path(work))
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
                os.utime(folder)
    return folder


def python(base: Path, *words: str | Path) -> str:
    """Run the base's interpreter where it is; returns what it printed."""
    environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    loader = [base / "lib" / LOADER, "--library-path", base / "lib", base / "bin" / PYTHON]
    return command(*loader, "-S", *words, env=environment)


def compile_modules(base: Path, library: Path) -> None:
    """Put ``NAME.pyc`` beside each ``NAME.py``; it holds no time, and is never compared with the source."""
    words = ["-m", "compileall", "-q", "-b", "-f", "--invalidation-mode", "unchecked-hash"]
    # A traceback names /nodeattest_.../file.py, wherever it was built.
    python(base, *words, "-s", library, "-p", "/", library)


def _make(work: Path) -> Path:
    root = work / "root.tar"
    command("mmdebstrap", "--quiet", "--variant=extract", f"--include={_INCLUDE}", _SUITE, root)
    made, unpacked = work / "made", work / "root"
    unpacked.mkdir()
    command("tar", "-xf", root, "-C", unpacked, "--wildcards", *_WANTED)
    library = made / "lib" / PYTHON
    shutil.copytree(unpacked / "usr" / "lib" / PYTHON, library, symlinks=True)
    _pip(["install", *_for_debian(), "--target", str(work / "shipped")], *_SHIPPED)
    shutil.copytree(work / "shipped", library, dirs_exist_ok=True)
    for static in library.glob("config-3.11-*"):
        shutil.rmtree(static)
    (made / "bin").mkdir()
    shutil.copy(unpacked / "usr" / "bin" / PYTHON, made / "bin")
    for module in made.rglob("*.so"):  # extension modules of the standard library: sqlite3, curses
        if None in map(_package_of, _needed(module)):
            module.unlink()
    packages = copy_libraries(unpacked, made)
    command("strip", "--strip-unneeded", *library.rglob("*.so"))
    compile_modules(made, library)
    debian = [
        f"{name} {_debian_version(unpacked, name)}"
        for name in sorted({*packages, "libpython3.11-stdlib", "python3.11-minimal"})
    ]
    (made / "packages.txt").write_text("\n".join([*debian, *_pins(*_SHIPPED), ""]))
    return made


def copy_libraries(source: Path, made: Path) -> set[str]:
    """Copy the shared libraries of ``source`` that ``made`` needs; returns the Debian packages that they are of."""
    waiting = [LOADER, *_needed(made / "bin" / PYTHON)]
    waiting += [name for module in made.rglob("*.so") for name in _needed(module)]
    packages: set[str] = set()
    while waiting:
        name = waiting.pop()
        if (made / "lib" / name).exists():
            continue
        package = _package_of(name)
        found = next(source.rglob(name), None)
        if package is None or found is None:
            sys.exit(f"expected a library of _PACKAGES in {_SUITE}, got {name}: add its package")
        shutil.copy(found, made / "lib" / name)
        packages.add(package)
        waiting += _needed(found)
    return packages


def _needed(binary: Path) -> list[str]:
    return command("patchelf", "--print-needed", binary).split()


def _package_of(library: str) -> str | None:
    return next((package for package, starts in _PACKAGES.items() if library.startswith(starts)), None)


def _debian_version(root: Path, package: str) -> str:
    folder = root / "usr" / "share" / "doc" / package
    for _ in range(3):  # libpython3.11-stdlib's is a link
        folder = folder.parent / folder.readlink() if folder.is_symlink() else folder
    with gzip.open(folder / "changelog.Debian.gz", "rt") as changelog:
        return changelog.readline().split("(")[1].partition(")")[0]


def _for_debian() -> list[str]:
    """Return pip's options for the wheels that Debian's interpreter runs, whichever interpreter asks."""
    tags = ["--abi=cp311", "--abi=abi3", "--abi=none", "--implementation=cp", "--python-version=3.11"]
    platforms = [f"--platform=manylinux_2_{minor}_{platform.machine()}" for minor in range(36, 16, -1)]
    return ["--only-binary=:all:", *tags, *platforms, f"--platform=manylinux2014_{platform.machine()}", "--no-compile"]


def _pip(words: list[str], *names: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("".join(_locked(name) for name in names))
        requirements.flush()
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "-r", requirements.name]
        command(sys.executable, "-m", "pip", words[0], *options, *words[1:])


def _locked(name: str) -> str:
    """Return the lines of ``requirements.lock`` about one package."""
    text = (TREE / "requirements.lock").read_text()
    found = re.search(rf"^{re.escape(name)}==.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[0] if found else sys.exit(f"requirements.lock does not have {name}")


def _pins(*names: str) -> list[str]:
    return sorted(_locked(name).split(" ")[0] for name in names)
