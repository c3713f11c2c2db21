"""Gives memory back to the system after many connections have ended.

glibc keeps what was freed between two blocks in use, so a process that had 400 connections once looks for ever as if it
still had them. Where the C library cannot give it back (musl), only Python's own cycles are freed.
What is freed and taken again all the time, such as the pieces of a stream, should stay: by its defaults glibc returns
it to the system after each piece, and having the pages back costs a third of a proxy's throughput.
Source: malloc_trim(3), mallopt(3).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable
from typing import Final

__all__ = ["FreeMemory", "collect_rarely", "reuse_freed"]

_MANY: Final = 64
"""Connections whose memory is worth the milliseconds that this takes."""
_DELAY: Final = 1.0
"""Seconds: what ends together is given back together."""
_PAUSE: Final = 10.0
"""Seconds between two times: it stops the loop, and whoever connects decides when connections end."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""malloc.h."""
_THRESHOLDS: Final = (5_000, 2, 10)
"""Containers that were made and not freed, young collections, and middle ones: 700, 10 and 10 by default. While 400,000
containers are made, the three generations are collected 58, 19 and once, by default 519, 47 and 4 times."""
_KEPT: Final = 16 << 20
_LARGE: Final = 1 << 20
"""Bytes of a block that is mapped on its own, and so is returned at once; pieces of streams have less."""


class FreeMemory:
    """Watches how many connections there are."""

    def __init__(self) -> None:
        self._most = 0
        """At one time, since memory was given back last."""
        self._planned: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        """By the loop's clock."""

    def connections(self, count: int) -> None:
        """Note how many there are now; after a half of many have ended, memory is given back."""
        self._most = max(self._most, count)
        if self._most >= _MANY and count <= self._most // 2 and self._planned is None:
            loop = asyncio.get_running_loop()
            self._planned = loop.call_at(max(loop.time() + _DELAY, self._not_before), self._give_back)

    def _give_back(self) -> None:
        self._planned, self._most = None, 0
        self._not_before = asyncio.get_running_loop().time() + _PAUSE
        gc.collect()
        _trim()


def collect_rarely() -> None:
    """Never again look for cycles in what is loaded by now, and less often in what is young.

    For a process that is about to serve: it has 70,000 containers of modules and classes, which never go.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def reuse_freed() -> None:
    """Keep up to ``_KEPT`` freed bytes at the end of this process's heap, and take a stream's pieces from there."""
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(ctypes.c_int(_M_MMAP_THRESHOLD), ctypes.c_int(_LARGE))
        mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(_KEPT))


def _trim() -> None:
    trim = _function("malloc_trim")
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _function(name: str) -> Callable[..., object] | None:
    """Find a function that only glibc has."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
