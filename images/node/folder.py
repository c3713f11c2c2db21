"""The agent's folder: Debian 13's CPython and libraries, the locked Python packages, our modules, and the one path.

Promises: ``write_folder`` writes ``/opt/nodeattest/<name>`` below a root and returns the name, which is the version and
a digest of the content: one name, one content, whoever built it and when. It has everything that a call needs, the C
library included, so the machine's own C library may be older, or none. Interpreter, loader and command name this path,
so a process uses files of one version for all its life. ``packages.txt`` names where each part comes from.
Leaves to others: packages (``__main__``).
Source: docs/decisions.md.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images.debian import PYTHON, Architecture, cached, debian, interpreter, read_lock, run
from images.requirements import PYTHON_LOCK, build_wheels, download, locked_lines
from nodeattest_providers import __version__

HOME: Final = "/opt/nodeattest"
"""On images whose /usr is read-only this can be written."""
_PYTHON: Final = f"python{PYTHON}"
_SHIPPED: Final = frozenset(
    {"botocore", "cffi", "cryptography", "jmespath", "python-dateutil", "pyyaml", "six", "urllib3"}
)
"""What nodeattest-agent[aws] needs. Of boto3 the attestor of aws uses botocore's signature only."""
_WHEELS: Final = ("providers", "authenticator")
_FILES: Final = Path(__file__).parent / "files"
_SLOW_PATH: Final = "if status is None:\n"
_OWN_OPENSSL: Final = f"""\
{_SLOW_PATH}\
    import os
    for name, path in ("CONF", "openssl.cnf"), ("MODULES", "ossl-modules"), ("ENGINES", "engines"):
        os.putenv(f"OPENSSL_{{name}}", f"@HOME@/{{path}}")
"""
"""Before the first import of ``ssl``. ``putenv``: ``os.environ`` stays what the machine gave, for its programs."""


@dataclass(frozen=True, slots=True)
class Modules:
    """Our modules, compiled, and the text of the command; the same for each architecture."""

    folder: Path
    script: str


def build_modules(cache: Path, work: Path) -> Modules:
    """Build the wheels of a node from this tree, and unpack them below ``work``."""
    ours = work / "ours"
    script = _with_own_openssl(_unpack_wheels(work, ours))
    _compile(cache, ours)
    return Modules(ours, script)


def write_folder(architecture: Architecture, cache: Path, modules: Modules, root: Path, extra: str = "") -> str:
    """Write the folder below ``root``; returns its name. ``extra`` is content that tells two builds of a test apart."""
    library, parts, script = _library(architecture, cache), debian(architecture, cache), modules.script
    with tempfile.TemporaryDirectory() as work:
        made = Path(work) / "folder"
        (made / "bin").mkdir(parents=True)
        shutil.copy(parts / "root/usr/bin" / _PYTHON, made / "bin")
        reachable = Path(__file__).with_name("reachable.py")
        files = interpreter(cache, reachable, f"{architecture.machine}-linux-gnu", library, modules.folder)
        for folder in (library, modules.folder):
            _copy_modules(folder, made / "lib" / _PYTHON, map(Path, files.decode().split()))
        names = _copy_libraries(architecture, parts / "packages", made)
        shutil.copy(_FILES / "openssl.cnf", made)
        (made / "packages.txt").write_text(_listed(architecture, names) + extra)
        name = f"{__version__}-{_digest(made, script)}"
        home = f"{HOME}/{name}"
        # An RPATH, not a RUNPATH: it counts for what extension modules open, too, before the machine's.
        loader = f"{home}/lib/{architecture.loader}"
        run(
            "patchelf",
            "--set-interpreter",
            loader,
            "--force-rpath",
            "--set-rpath",
            f"{home}/lib",
            made / "bin" / _PYTHON,
        )
        # -I: no environment, no user's modules; -S: all modules are beside the standard library.
        program = made / "bin" / "kubelet-authenticator"
        program.write_text(script.replace("#!python\n", f"#!{home}/bin/{_PYTHON} -IS\n").replace("@HOME@", home))
        for path in made.rglob("*"):
            executable = path.is_dir() or path.parent.name == "bin" or path.name == architecture.loader
            path.chmod(0o755 if executable else 0o644)
        shutil.copytree(made, root / home.lstrip("/"))
    return name


def _library(architecture: Architecture, cache: Path) -> Path:
    """Return a folder with the standard library and the packages of others, compiled; made once for their locks."""
    lines = locked_lines(PYTHON_LOCK, _SHIPPED)

    def make(folder: Path) -> None:
        standard = debian(architecture, cache) / "root/usr/lib" / _PYTHON
        shutil.copytree(standard, folder, symlinks=True, dirs_exist_ok=True)
        with tempfile.TemporaryDirectory() as work:
            for wheel in download(lines, architecture, Path(work) / "wheels"):
                zipfile.ZipFile(wheel).extractall(folder)
        _compile(cache, folder)

    recipe = architecture.lock.read_bytes() + lines.encode()
    return cached(cache, f"library-{architecture.debian}", recipe, make)


def _compile(cache: Path, library: Path) -> None:
    """Put ``NAME.pyc`` beside each ``NAME.py``; it holds no time, and is never compared with the source."""
    words = ["-m", "compileall", "-q", "-b", "-f", "--invalidation-mode", "unchecked-hash"]
    # A traceback names /nodeattest_.../file.py, wherever it was built.
    interpreter(cache, *words, "-s", library, "-p", "/", library)


def _copy_libraries(architecture: Architecture, packages: Path, made: Path) -> set[str]:
    """Copy the shared libraries that ``made`` needs; returns the Debian packages that they are of."""
    names: set[str] = set()
    waiting = [architecture.loader, *_needed(made / "bin" / _PYTHON)]
    waiting += [name for module in made.rglob("*.so") for name in _needed(module)]
    while waiting:
        name = waiting.pop()
        if (made / "lib" / name).exists():
            continue
        found = next(packages.glob(f"*/usr/lib/{architecture.machine}-linux-gnu/{name}"), None)
        if found is None:
            sys.exit(f"expected {name} in {architecture.lock.name}: add its package to images/debian.py")
        shutil.copy(found, made / "lib" / name)
        names.add(found.relative_to(packages).parts[0])
        waiting += _needed(found)
    return names


def _needed(binary: Path) -> list[str]:
    return run("patchelf", "--print-needed", binary).decode().split()


def _listed(architecture: Architecture, names: set[str]) -> str:
    """Return a line for each Debian package with a file in the folder, and for each Python package."""
    debs = [deb for deb in read_lock(architecture) if deb.name in names or "python" in deb.name]
    pins = [line.split()[0] for line in locked_lines(PYTHON_LOCK, _SHIPPED).splitlines() if not line.startswith(" ")]
    return "".join(f"{line}\n" for line in [*(f"{deb.name} {deb.version}" for deb in debs), *pins])


def _with_own_openssl(script: str) -> str:
    """Return the command's text with OpenSSL's settings and modules in the folder; a cached answer needs neither."""
    if script.count(_SLOW_PATH) != 1:
        sys.exit(f"expected one line {_SLOW_PATH!r} in the command, got {script!r}: mend _SLOW_PATH")
    return script.replace(_SLOW_PATH, _OWN_OPENSSL)


def _copy_modules(source: Path, target: Path, files: Iterable[Path]) -> None:
    """Copy those of a folder, compiled modules and extension modules; sources stay behind."""
    for file in files:
        if not file.is_relative_to(source):
            continue
        compiled = file.with_suffix(".pyc") if file.suffix == ".py" else file
        copy = target / compiled.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(compiled, copy)


def _unpack_wheels(work: Path, target: Path) -> str:
    """Unpack what the wheels of a node hold; returns the command's text."""
    build_wheels(work, _WHEELS)
    script = ""
    for wheel in sorted(work.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith("/scripts/kubelet-authenticator"):
                    script = archive.read(member).decode()
                elif ".dist-info/" not in member and ".data/" not in member:
                    archive.extract(member, target)
    return script


def _digest(made: Path, script: str) -> str:
    digest = hashlib.sha256(script.encode())
    for path in sorted(path for path in made.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(made)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:12]
