"""The agent's folder: the base, our modules, and the one path at which it runs.

Promises: ``write_folder`` writes ``/opt/nodeattest/<name>`` below a root and returns the name, which is the version and
a digest of the content: one name, one content, whoever built it and when. Interpreter, loader and command name this
path, so a process uses files of one version for all its life.
Leaves to others: CPython and libraries (``node_base``), packages (``build_packages``).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from node_base import LOADER, PYTHON, TREE, command, compile_modules, copy_libraries, python

__all__ = ["HOME", "version", "write_folder"]

HOME: Final = "/opt/nodeattest"
"""On images whose /usr is read-only this can be written."""
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
_PIP_WHEEL: Final = (
    *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
    *("--no-deps", "--no-build-isolation", "--no-index"),
)


def version() -> str:
    """Return the version of this tree."""
    text = (TREE / "providers" / "nodeattest_providers" / "__init__.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    return found[1] if found else ""


def write_folder(base: Path, root: Path, extra: str = "") -> str:
    """Write the folder below ``root``; returns its name. ``extra`` is content that tells two builds of a test apart."""
    with tempfile.TemporaryDirectory() as work:
        made, ours = Path(work) / "folder", Path(work) / "ours"
        script = _with_own_openssl(_unpack_wheels(Path(work), ours))
        compile_modules(base, ours)
        (made / "bin").mkdir(parents=True)
        shutil.copy(base / "bin" / PYTHON, made / "bin")
        library = base / "lib" / PYTHON
        reachable = python(base, Path(__file__).parent / "reachable.py", library, ours).split()
        for folder in (library, ours):
            files = [Path(name) for name in reachable if Path(name).is_relative_to(folder)]
            _copy_modules(folder, made / "lib" / PYTHON, files)
        copy_libraries(base / "lib", made)
        shutil.copy(_FILES / "openssl.cnf", made)
        (made / "packages.txt").write_text((base / "packages.txt").read_text() + extra)
        name = f"{version()}-{_digest(made, script)}"
        home = f"{HOME}/{name}"
        # An RPATH, not a RUNPATH: it counts for what extension modules open, too, before the machine's.
        paths = ["--set-interpreter", f"{home}/lib/{LOADER}", "--force-rpath", "--set-rpath", f"{home}/lib"]
        command("patchelf", *paths, made / "bin" / PYTHON)
        # -I: no environment, no user's modules; -S: all modules are beside the standard library.
        program = made / "bin" / "kubelet-authenticator"
        program.write_text(script.replace("#!python\n", f"#!{home}/bin/{PYTHON} -IS\n").replace("@HOME@", home))
        for path in made.rglob("*"):
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" or path.name == LOADER else 0o644)
        shutil.copytree(made, root / home.lstrip("/"))
    return name


def _with_own_openssl(script: str) -> str:
    """Return the command's text with OpenSSL's settings and modules in the folder; a cached answer needs neither."""
    if script.count(_SLOW_PATH) != 1:
        sys.exit(f"expected one line {_SLOW_PATH!r} in the command, got {script!r}: mend _SLOW_PATH")
    return script.replace(_SLOW_PATH, _OWN_OPENSSL)


def _copy_modules(source: Path, target: Path, files: list[Path]) -> None:
    """Copy compiled modules and extension modules; sources stay behind."""
    for file in files:
        compiled = file.with_suffix(".pyc") if file.suffix == ".py" else file
        copy = target / compiled.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(compiled, copy)


def _unpack_wheels(work: Path, target: Path) -> str:
    """Unpack what the wheels of a node hold; returns the command's text."""
    for project in _WHEELS:
        command(*_PIP_WHEEL, "--wheel-dir", work, TREE / project)
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
