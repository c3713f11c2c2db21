"""How much memory the management cluster's caches may take: half of what the container has.

The other half is for the program, what is parsed of the objects, a list that is read anew, reviews of the webhook, and
workload clusters' requests.
Source: Linux Documentation/admin-guide/cgroup-v2.rst (``memory.max``) and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["cache_memory"]

_CGROUP: Final = Path("/sys/fs/cgroup")
_FILES: Final = ("memory.max", "memory/memory.limit_in_bytes")
"""Of versions 2 and 1."""
_MOST: Final = 1 << 30
"""Bytes, and what is taken where there is no limit."""


def cache_memory(cgroup: Path = _CGROUP) -> int:
    """Return bytes."""
    limits = [_limit(cgroup / name) for name in _FILES]
    return min([_MOST, *(limit // 2 for limit in limits if limit is not None)])


def _limit(file: Path) -> int | None:
    """Read a limit; None where there is none."""
    try:
        written = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(written) if written.isdecimal() else None  # "max" is none
