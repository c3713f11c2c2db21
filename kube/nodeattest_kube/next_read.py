"""One read for everybody who needs to know how something is after now.

Promises: an answer is of a read that began after it was asked for, unlike that of a single-flight, which joins one that
is under way. At most one read is under way, and all who ask meanwhile share the next. A caller that is cancelled takes
nothing from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

__all__ = ["NextRead"]

T = TypeVar("T")


class NextRead(Generic[T]):
    """The reads of one thing."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._begun: asyncio.Task[T] | None = None
        """The read under way; it began too early for whoever asks now."""
        self._next: asyncio.Task[T] | None = None

    async def read(self) -> T:
        """Return what the next read gives, or raise what it raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._begun))
            self._next.add_done_callback(self._ended)
        return await asyncio.shield(self._next)

    async def _after(self, begun: asyncio.Task[T] | None) -> T:
        if begun is not None:
            await asyncio.wait({begun})
        self._begun, self._next = self._next, None
        return await self._read()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if self._begun is task:
            self._begun = None
        if self._next is task:  # cancelled before it began
            self._next = None
        if not task.cancelled():
            task.exception()  # retrieved: who waits has it
