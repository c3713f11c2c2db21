"""Gives memory back to the system after many connections have ended.

glibc keeps what was freed between two blocks in use, so a process that had 400 connections once looks for ever as if it
still had them. Where the C library cannot give it back (musl), only Python's own cycles are freed.
Source: malloc_trim(3).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import Final

__all__ = ["FreeMemory"]

_MANY: Final = 64
"""Connections whose memory is worth the milliseconds that this takes."""
_DELAY: Final = 1.0
"""Seconds: what ends together is given back together."""
_PAUSE: Final = 10.0
"""Seconds between two times: it stops the loop, and whoever connects decides when connections end."""


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


def _trim() -> None:
    """Call malloc_trim, which only glibc has."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    trim(0)
