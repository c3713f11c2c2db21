"""How much an agent installs: the wheel's own packages and everything that they require, on disk; no extras."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from bench.figures import Figure

ROOT = Path(__file__).parents[1]
MIB = 1 << 20


def measure() -> list[Figure]:
    own = sum(_tree(ROOT / room / f"nodeattest_{room}") for room in _rooms())
    sizes = {name: _installed(name) for name in sorted(_required())}
    largest = ", ".join(f"{name} {size / MIB:.1f}" for name, size in sorted(sizes.items(), key=lambda one: -one[1])[:4])
    total = (own + sum(sizes.values())) / MIB
    return [Figure("installed nodeattest", total, "MiB", "<= 30", f"{own / MIB:.1f} own; {largest}")]


def _rooms() -> list[str]:
    return [folder.parent.name for folder in ROOT.glob("*/nodeattest_*") if folder.is_dir()]


def _tree(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _required() -> set[str]:
    """Close over the requirements; a TPM needs no extra."""
    found: set[str] = set()
    waiting = [line for line in metadata.requires("nodeattest") or [] if "extra" not in line]
    while waiting:
        line = waiting.pop()
        name = re.split(r"[\s;\[<>=!~(]", line, maxsplit=1)[0].lower()
        if name in found or not _present(name):
            continue
        found.add(name)
        waiting += [one for one in metadata.requires(name) or [] if "extra" not in one]
    return found


def _present(name: str) -> bool:
    """Return whether it is installed here: what is not is for another platform or Python."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _installed(name: str) -> int:
    files = metadata.files(name) or []
    paths = [Path(str(file.locate())) for file in files if "__pycache__" not in file.parts]
    return sum(path.stat().st_size for path in paths if path.is_file())
