"""Schedules handshakes and requests fairly: a few in each pass of the event loop, round robin among keys.

So a client that sends thousands at once delays another one's by one of each such client, and connections that only wait
delay none. Keys may be of several groups, which are served round robin, too: however many keys there are in one, those
of another do not wait longer. What has one key keeps its order.
Over the limit of all that wait, the newest of the key with most is removed, in the group with most; among equals, the
one that came last. Work may have to wait for a delay, but only while few wait: else what waits would fill the queue.
Leaves to others: the key, by which clients are distinguished.
Source: RFC 970, "Fairness" (a queue for each source, served round robin).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["FairScheduler", "ScheduleKey"]

_FEW: Final = 8
"""The part of the queue in which work waits for the delay: an eighth."""


@dataclass(frozen=True, slots=True)
class ScheduleKey:
    """Whose work it is."""

    name: str
    group: str = ""


class FairScheduler:
    """The scheduler for one kind of work of a server."""

    def __init__(self, max_waiting: int, *, per_pass: int = 1, delay: Callable[[], float] = lambda: 0.0) -> None:
        """``per_pass``: begin in one pass of the loop. ``delay``: seconds until any may begin, while few wait."""
        self._max_waiting = max_waiting
        self._per_pass = self._left = per_pass
        """``_left``: how many more may begin in the present pass."""
        self._asked_delay = delay
        self._few = max_waiting // _FEW
        self._planned: asyncio.Handle | None = None
        self._count = 0
        self._groups: OrderedDict[str, OrderedDict[ScheduleKey, deque[asyncio.Future[bool]]]] = OrderedDict()
        """What waits of each key; the group that is served next is the first, and in it the key."""

    async def wait(self, key: ScheduleKey) -> bool:
        """Wait until the work may begin; False: too many wait, and this key has most."""
        if self._left and not self._groups and not self._delay():
            self._left -= 1
            self._plan()
            return True
        if self._count >= self._max_waiting and not self._make_room(key):
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._plan()
        self._groups.setdefault(key.group, OrderedDict()).setdefault(key, deque()).append(waiter)
        self._count += 1
        if self._count == self._few:
            self.resume()
        try:
            return await waiter
        except asyncio.CancelledError:
            self._forget(key, waiter)
            raise

    def resume(self) -> None:
        """Ask for the delay again: it may have become shorter."""
        if self._groups and self._planned is not None:
            self._planned.cancel()
            self._planned = None
            self._plan()

    def _delay(self) -> float:
        """Return the seconds until any may begin: none once many wait."""
        return 0.0 if self._count >= self._few else self._asked_delay()

    def _plan(self) -> None:
        """Have the next pass of the loop serve as many as a pass may."""
        if self._planned is None:
            loop, delay = asyncio.get_running_loop(), self._delay()
            self._planned = loop.call_later(delay, self._serve) if delay else loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Let as many begin as a pass may."""
        self._planned, self._left = None, self._per_pass
        if self._groups and self._delay():
            self._plan()
            return
        while self._groups and self._left:
            group, keys = next(iter(self._groups.items()))
            self._groups.move_to_end(group)
            key = next(iter(keys))
            keys.move_to_end(key)
            if _settle(self._pop(key, newest=False), may_begin=True):
                self._left -= 1
        if self._left < self._per_pass:
            self._plan()

    def _make_room(self, key: ScheduleKey) -> bool:
        """Remove the newest of the key with most, in the group with most if that is another one, else in its own.

        False if the group, or in its own the key, that wants the room would then have as many.
        """
        counts = {group: sum(map(len, keys.values())) for group, keys in self._groups.items()}
        group = max(counts, key=lambda each: counts[each])
        if counts[group] <= counts.get(key.group, 0) + 1:
            group = key.group
        waiting = {each: len(queue) for each, queue in self._groups.get(group, OrderedDict()).items()}
        loser = max(reversed(waiting), key=lambda each: waiting[each], default=None)
        if loser is None or (group == key.group and waiting[loser] <= waiting.get(key, 0) + 1):
            return False
        _settle(self._pop(loser, newest=True), may_begin=False)
        return True

    def _pop(self, key: ScheduleKey, *, newest: bool) -> asyncio.Future[bool]:
        queue = self._groups[key.group][key]
        waiter = queue.pop() if newest else queue.popleft()
        self._removed(key)
        return waiter

    def _forget(self, key: ScheduleKey, waiter: asyncio.Future[bool]) -> None:
        """Remove what waits no longer, because its connection has ended."""
        keys = self._groups.get(key.group)
        queue = None if keys is None else keys.get(key)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            self._removed(key)

    def _removed(self, key: ScheduleKey) -> None:
        self._count -= 1
        keys = self._groups[key.group]
        if not keys[key]:
            del keys[key]
        if not keys:
            del self._groups[key.group]


def _settle(waiter: asyncio.Future[bool], *, may_begin: bool) -> bool:
    """Answer what waits; False: nothing does, because the connection has ended."""
    if waiter.done():
        return False
    waiter.set_result(may_begin)
    return True
