"""Turns in an event loop, for handshakes and for requests: one in each pass of the loop, round robin among clients.

So whoever sends thousands at once delays another client's by one of each such client, and connections that only wait
delay none. What one client sends keeps its order.
Over the limit of all that wait, the newest of the client with most loses its place.
Leaves to others: what identifies a client.
Source: RFC 970, "Fairness" (a queue for each source, served round robin).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

__all__ = ["FairTurns"]


class FairTurns:
    """The turns for one kind of work of a server."""

    def __init__(self, most: int | None = None) -> None:
        """``most``: at most so many wait; None where their number has another bound."""
        self._most = most
        self._count = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[bool]]] = OrderedDict()
        """By client; the one that is next is the first."""

    async def wait(self, client: str) -> bool:
        """Wait for a turn, also where nobody else does; False: too many wait, and this client has most."""
        if self._most is not None and self._count >= self._most and not self._make_room(client):
            return False
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._give)
        self._waiting.setdefault(client, deque()).append(turn)
        self._count += 1
        return await turn

    def _give(self) -> None:
        """Give one turn, and plan the next."""
        given = False
        while self._waiting and not given:
            client = next(iter(self._waiting))
            self._waiting.move_to_end(client)
            given = _settle(self._pop(client, newest=False), is_turn=True)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)

    def _make_room(self, client: str) -> bool:
        """Remove the newest of the client with most; False if that is about the one that wants the room."""
        loser = max(self._waiting, key=lambda each: len(self._waiting[each]))
        if len(self._waiting[loser]) <= len(self._waiting.get(client, ())):
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
