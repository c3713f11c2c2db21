"""Which lines of requirements.lock a set of our wheels needs, and the wheels of them for Debian 13's Python.

The one lock stays the only truth.

The requirements of a third party's package are read from its installed metadata, which has the lock's version.
Source: https://packaging.python.org/en/latest/specifications/core-metadata/.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterable, Mapping
from email.message import Message
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from packaging.requirements import Requirement

from images.debian import PYTHON, TREE, Architecture, run

PYTHON_LOCK: Final = TREE / "requirements.lock"
_GLIBC: Final = range(41, 16, -1)
"""Minor versions: of Debian 13 down to that of manylinux2014."""
_OURS: Final = "nodeattest-"


def environment(python: str, system: str = "Linux", machine: str = "x86_64") -> Mapping[str, str]:
    """Return the values of markers for CPython of a full version, on Linux or Darwin."""
    return {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": system,
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "sys_platform": system.lower(),
    }


class Needed(NamedTuple):
    """Normalized names of distributions."""

    ours: frozenset[str]
    others: frozenset[str]


def metadata_of(wheel: Path) -> Message:
    """Return the metadata's fields of a wheel; ``Requires-Dist`` may be there several times (``get_all``)."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)]
        return HeaderParser().parsestr(archive.read(name).decode())


def needed(
    wheels: Iterable[Path],
    root: str,
    extras: frozenset[str],
    environments: Iterable[Mapping[str, str]],
) -> Needed:
    """Name what ``root``, one of our wheels, needs with these extras in any of the environments."""
    everywhere = list(environments)
    ours = {_normalized(read["Name"]): read for read in map(metadata_of, wheels)}
    waiting = [(root, extras)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        mine = ours.get(name)
        lines = mine.get_all("Requires-Dist") if mine is not None else metadata.requires(name)
        for requirement in map(Requirement, lines or []):
            marker = requirement.marker
            if marker is None or any(
                marker.evaluate({**environment, "extra": extra})
                for environment in everywhere
                for extra in wanted or {""}
            ):
                waiting.append((_normalized(requirement.name), frozenset(requirement.extras)))
    names = frozenset(name for name, _ in seen)
    ours = frozenset(name for name in names if name.startswith(_OURS))
    return Needed(ours, names - ours)


def locked_lines(lock: Path, names: frozenset[str]) -> str:
    """Return the lock's entries for these names, with their hashes; ``SystemExit`` if one is missing."""
    text = re.sub(r"^#.*\n", "", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    entries = [entry.strip() for entry in re.split(r"\n(?=[a-zA-Z0-9])", text) if entry.strip()]
    found = {_normalized(re.split(r"[=\[; ]", entry, maxsplit=1)[0]): entry for entry in entries}
    if missing := sorted(names - found.keys()):
        raise SystemExit(f"{lock.name}: expected entries for {', '.join(missing)}; run make lock")
    return "".join(f"{found[name]}\n" for name in sorted(names))


def download(lines: str, architecture: Architecture, target: Path) -> list[Path]:
    """Download the wheels of these lines, whichever machine asks; pip checks the hashes."""
    target.mkdir()
    wanted = target / "requirements.txt"
    wanted.write_text(lines, encoding="utf-8")
    command = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
    platforms = [f"manylinux_2_{minor}_{architecture.machine}" for minor in _GLIBC]
    command += [f"--platform={one}" for one in (*platforms, f"manylinux2014_{architecture.machine}")]
    run(sys.executable, "-m", "pip", *command, "--dest", target, "--requirement", wanted)
    wanted.unlink()
    return sorted(target.glob("*.whl"))


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
