"""Schedules handshakes and requests fairly: a few in each pass of the event loop, round robin among keys.

So a client that sends thousands at once delays another one's by one of each such client, and connections that only wait
delay none. What has one key keeps its order.
Over the limit of all that wait, the newest of the key with most is removed; among equals, the one that came last.
Leaves to others: the key, by which clients are distinguished.
Source: RFC 970, "Fairness" (a queue for each source, served round robin).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

__all__ = ["FairScheduler"]


class FairScheduler:
    """The scheduler for one kind of work of a server."""

    def __init__(self, max_waiting: int | None = None, *, per_pass: int = 1) -> None:
        """``max_waiting``: None where their number has another bound. ``per_pass``: begin in one pass of the loop."""
        self._max_waiting = max_waiting
        self._per_pass = self._left = per_pass
        """``_left``: how many more may begin in the present pass."""
        self._is_planned = False
        self._count = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[bool]]] = OrderedDict()
        """By key; the one that is served next is the first."""

    async def wait(self, key: str) -> bool:
        """Wait until the work may begin; False: too many wait, and this key has most."""
        if self._left and not self._waiting:
            self._left -= 1
            self._plan()
            return True
        if self._max_waiting is not None and self._count >= self._max_waiting and not self._make_room(key):
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._plan()
        self._waiting.setdefault(key, deque()).append(waiter)
        self._count += 1
        return await waiter

    def _plan(self) -> None:
        """Have the next pass of the loop serve as many as a pass may."""
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Let as many begin as a pass may."""
        self._is_planned, self._left = False, self._per_pass
        while self._waiting and self._left:
            key = next(iter(self._waiting))
            self._waiting.move_to_end(key)
            if _settle(self._pop(key, newest=False), may_begin=True):
                self._left -= 1
        if self._left < self._per_pass:
            self._plan()

    def _make_room(self, key: str) -> bool:
        """Remove the newest of the key with most; False if the one that wants the room would then have as many."""
        loser = max(reversed(self._waiting), key=lambda each: len(self._waiting[each]))
        if len(self._waiting[loser]) <= len(self._waiting.get(key, ())) + 1:
            return False
        _settle(self._pop(loser, newest=True), may_begin=False)
        return True

    def _pop(self, key: str, *, newest: bool) -> asyncio.Future[bool]:
        queue = self._waiting[key]
        waiter = queue.pop() if newest else queue.popleft()
        self._count -= 1
        if not queue:
            del self._waiting[key]
        return waiter


def _settle(waiter: asyncio.Future[bool], *, may_begin: bool) -> bool:
    """Answer what waits; False: nothing does, because the connection has ended."""
    if waiter.done():
        return False
    waiter.set_result(may_begin)
    return True
