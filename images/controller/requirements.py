"""Which lines of requirements.lock a set of our wheels needs: the one lock stays the only truth.

The requirements of a third party's package are read from its installed metadata, which has the lock's version.
Source: https://packaging.python.org/en/latest/specifications/core-metadata/.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from email.message import Message
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

__all__ = ["locked_lines", "metadata_of", "needed"]

_TARGET: Final = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.11.2",
    "python_version": "3.11",
    "sys_platform": "linux",
}
"""The environment for which markers are evaluated."""
_OURS: Final = "nodeattest-"


def metadata_of(wheel: Path) -> Message:
    """Return the metadata's fields of a wheel; ``Requires-Dist`` may be there several times (``get_all``)."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)]
        return HeaderParser().parsestr(archive.read(name).decode())


def needed(wheels: Iterable[Path], root: str, extras: frozenset[str]) -> frozenset[str]:
    """Name all third-party distributions that ``root``, one of our wheels, needs with these extras, normalized."""
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
            if marker is None or any(marker.evaluate({**_TARGET, "extra": extra}) for extra in wanted or {""}):
                waiting.append((_normalized(requirement.name), frozenset(requirement.extras)))
    return frozenset(name for name, _ in seen if not name.startswith(_OURS))


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
