"""A queue of waiters, each of which is handed a slot by the one that held it before.

Promises: a slot is handed over to the first that still waits; one that was handed a slot and was cancelled or timed out
in the same moment passes it on. So no slot is lost, and none is free while anybody waits.
Leaves to others: how many slots there are, and how many may wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["WaitQueue"]


class WaitQueue:
    """Waiters for a slot, first in, first out."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(self, seconds: float, *, pass_on: Callable[[], None]) -> None:
        """Wait for a slot; raises ``TimeoutError``, or what ``evict_newest`` was given.

        ``pass_on`` is called with a slot that came too late.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except BaseException:  # a cancelled waiter leaves the queue, too
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                pass_on()
            raise

    def serve(self) -> bool:
        """Hand a slot to the first that still waits; False: nobody does."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():  # it may have been cancelled while its task has not run yet
                waiter.set_result(None)
                return True
        return False

    def evict_newest(self, error: Exception) -> None:
        """Remove the newest waiter, whose wait raises ``error``."""
        waiter = self._waiters.pop()
        if not waiter.done():
            waiter.set_exception(error)
