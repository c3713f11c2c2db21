"""Turns in an event loop, for handshakes and for requests: a few in each pass of the loop, round robin among clients.

So whoever sends thousands at once delays another client's by one of each such client, and connections that only wait
delay none. What one client sends keeps its order.
Over the limit of all that wait, the newest of the client with most loses its place; among equals, whoever came last.
Leaves to others: what identifies a client.
Source: RFC 970, "Fairness" (a queue for each source, served round robin).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

__all__ = ["FairTurns"]


class FairTurns:
    """The turns for one kind of work of a server."""

    def __init__(self, most: int | None = None, *, at_once: int = 1) -> None:
        """``most``: at most so many wait; None where their number has another bound. ``at_once``: in one pass."""
        self._most = most
        self._at_once = self._left = at_once
        """Turns of a pass, and those that are left of the present one."""
        self._is_planned = False
        self._count = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[bool]]] = OrderedDict()
        """By client; the one that is next is the first."""

    async def wait(self, client: str) -> bool:
        """Wait for a turn; False: too many wait, and this client has most."""
        if self._left and not self._waiting:
            self._left -= 1
            self._plan()
            return True
        if self._most is not None and self._count >= self._most and not self._make_room(client):
            return False
        turn = asyncio.get_running_loop().create_future()
        self._plan()
        self._waiting.setdefault(client, deque()).append(turn)
        self._count += 1
        return await turn

    def _plan(self) -> None:
        """Have the next pass begin with all its turns."""
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        """Give the turns of a pass."""
        self._is_planned, self._left = False, self._at_once
        while self._waiting and self._left:
            client = next(iter(self._waiting))
            self._waiting.move_to_end(client)
            if _settle(self._pop(client, newest=False), is_turn=True):
                self._left -= 1
        if self._left < self._at_once:
            self._plan()

    def _make_room(self, client: str) -> bool:
        """Remove the newest of the client with most; False if the one that wants the room would then have as many."""
        loser = max(reversed(self._waiting), key=lambda each: len(self._waiting[each]))
        if len(self._waiting[loser]) <= len(self._waiting.get(client, ())) + 1:
            return False
        _settle(self._pop(loser, newest=True), is_turn=False)
        return True

    def _pop(self, client: str, *, newest: bool) -> asyncio.Future[bool]:
        queue = self._waiting[client]
        turn = queue.pop() if newest else queue.popleft()
        self._count -= 1
        if not queue:
            del self._waiting[client]
        return turn


def _settle(turn: asyncio.Future[bool], *, is_turn: bool) -> bool:
    """Tell whoever waits; False: nobody does, because its connection has ended."""
    if turn.done():
        return False
    turn.set_result(is_turn)
    return True
