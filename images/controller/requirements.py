"""Which lines of requirements.lock a set of our wheels needs: the one lock stays the only truth.

The requirements of a third party's package are read from its installed metadata, which has the lock's version.
Source: https://packaging.python.org/en/latest/specifications/core-metadata/.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping
from email.message import Message
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from packaging.requirements import Requirement

__all__ = ["Needed", "environment", "locked_lines", "metadata_of", "needed"]


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


_TARGET: Final = environment("3.11.2")
"""The image's."""
_OURS: Final = "nodeattest-"


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
    environments: Iterable[Mapping[str, str]] = (_TARGET,),
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


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
