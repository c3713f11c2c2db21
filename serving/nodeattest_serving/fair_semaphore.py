"""A semaphore that is fair among peers: a queue for each peer, served round robin.

The next holder is the first waiter of the peer that was served longest ago. If the queues are full, the peer with the
longest queue loses its newest waiter.
Source: RFC 970, "Fairness" (a queue for each source, served round robin).
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from nodeattest_providers.errors import Reason, Unavailable


class FairSemaphore:
    """Limits concurrency, fairly among peers."""

    def __init__(
        self, *, limit: int = 16, limit_of_peer: int | None = None, max_waiting: int = 256, timeout: float = 5.0
    ) -> None:
        """``limit_of_peer``: None where one peer may have all of them. ``timeout``: seconds that a waiter waits."""
        self._free = limit
        self._limit_of_peer = limit if limit_of_peer is None else limit_of_peer
        self._held: Counter[str] = Counter()
        """By peer."""
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """The waiters of each peer that has any; the peer that is served next is the first."""

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    @asynccontextmanager
    async def acquire(self, peer: str) -> AsyncGenerator[None]:
        """Hold the semaphore inside the context; raises ``Unavailable``."""
        if self._free and self._held[peer] < self._limit_of_peer:
            self._free -= 1
            self._held[peer] += 1
        else:
            await self._wait(peer)
        try:
            yield
        finally:
            self._release(peer)

    async def _wait(self, peer: str) -> None:
        """Wait until the semaphore is ours.

        1. If the queues are full, evict a waiter of the peer with the longest queue. 2. Wait in the peer's queue.
        """
        # 1
        if self.waiting >= self._max_waiting:
            self._evict_for(peer)
        # 2
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(peer, deque()).append(turn)
        try:
            async with asyncio.timeout(self._timeout):
                await turn
        except BaseException as error:  # a canceled waiter leaves the queue, too
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release(peer)  # it was served in the same moment
            else:
                self._forget(peer, turn)
            if isinstance(error, TimeoutError):
                raise _busy() from None
            raise

    def _evict_for(self, peer: str) -> None:
        """Remove the newest waiter of the longest queue; raises ``Unavailable`` if that is about the peer's own."""
        longest = max(self._queues, key=lambda each: len(self._queues[each]))
        if len(self._queues[longest]) <= len(self._queues.get(peer, ())) + 1:
            raise _busy()
        newest = self._queues[longest][-1]
        self._forget(longest, newest)
        if not newest.done():
            newest.set_exception(_busy())

    def _forget(self, peer: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(peer)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._queues[peer]

    def _release(self, peer: str) -> None:
        """Serve the first waiter of the next peer that is below its limit, which then is the last of the peers."""
        self._held[peer] -= 1
        if not self._held[peer]:
            del self._held[peer]
        for waiting in [each for each in self._queues if self._held[each] < self._limit_of_peer]:
            queue = self._queues.pop(waiting)
            turn = queue.popleft()
            while turn.done() and queue:  # canceled, and its task has not run yet
                turn = queue.popleft()
            if queue:
                self._queues[waiting] = queue
            if not turn.done():
                turn.set_result(None)
                self._held[waiting] += 1
                return
        self._free += 1


def _busy() -> Unavailable:
    return Unavailable(
        Reason.API_UNAVAILABLE,
        "too many requests wait for their turn",
        remedy="retry in some seconds; see who sends so many requests",
    )
