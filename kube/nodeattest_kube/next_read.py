"""One read for everybody who needs to know how something is after now.

Promises: an answer is of a read that began after it was asked for, unlike that of a single-flight, which joins one that
is under way. At most one is under way, and two begin ``GATHER`` seconds apart at least: all who ask meanwhile share
the next. Who asks alone waits for nothing but the read. A caller that is cancelled takes nothing from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

__all__ = ["GATHER", "NextRead"]

T = TypeVar("T")

GATHER: Final = 0.1
"""Seconds: a read takes 5 ms, and of 20 joins a second nearly each had one of its own."""


class NextRead(Generic[T]):
    """The reads of one thing."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._begun: asyncio.Task[T] | None = None
        """The read under way; it began too early for whoever asks now."""
        self._next: asyncio.Task[T] | None = None
        self._not_before = float("-inf")
        """When the next may begin, by the loop's clock."""

    async def read(self) -> T:
        """Return what the next read gives, or raise what it raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._begun))
            self._next.add_done_callback(self._ended)
        return await asyncio.shield(self._next)

    async def _after(self, begun: asyncio.Task[T] | None) -> T:
        if begun is not None:
            await asyncio.wait({begun})
        loop = asyncio.get_running_loop()
        if (early := self._not_before - loop.time()) > 0:
            await asyncio.sleep(early)
        self._not_before = loop.time() + GATHER
        self._begun, self._next = self._next, None
        return await self._read()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if self._begun is task:
            self._begun = None
        if self._next is task:  # cancelled before it began
            self._next = None
        if not task.cancelled():
            task.exception()  # retrieved: who waits has it
