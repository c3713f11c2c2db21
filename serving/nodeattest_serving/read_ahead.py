"""Stops reading from a connection while what it sent waits: to be scheduled, or for the other side of a proxy.

aiohttp alone reads up to 384 KiB ahead for each stream, so a few hundred that nobody reads would fill the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader

__all__ = ["not_read", "not_read_while_waiting"]


@contextmanager
def not_read(source: BaseProtocol | None) -> Generator[None]:
    """Read nothing from a connection inside the context; None: it has ended, or is not ours any more."""
    if source is None:
        yield
        return
    source.pause_reading()
    try:
        yield
    finally:
        if source.transport is not None:
            source.resume_reading()


@contextmanager
def not_read_while_waiting(source: BaseProtocol, body: StreamReader | None = None) -> Generator[None]:
    """Read nothing from a connection if the context takes longer than the present pass of the event loop.

    So it costs nothing where a piece is passed on at once. ``body``: nothing is paused once it is complete, as aiohttp
    cannot pause its parser then.
    """
    paused = False

    def pause() -> None:
        nonlocal paused
        paused = source.transport is not None and (body is None or not body.is_eof())
        if paused:
            source.pause_reading()

    waiting = asyncio.get_running_loop().call_soon(pause)
    try:
        yield
    finally:
        waiting.cancel()
        if paused and source.transport is not None:
            source.resume_reading()
