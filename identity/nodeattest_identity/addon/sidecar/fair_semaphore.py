"""Turns at something that can be asked a few things at a time, shared evenly among those who ask.

Promises: no more than ``at_once`` have a turn, no more than ``most_waiting`` wait for one; the next turn is that of the
peer whose last one is longest ago, so a peer that asks for a thousand delays another by one; where no place to wait is
left, the peer with the longest line gives one up. Who waits too long, or gives his place up, hears ``Unavailable``.
Leaves to others: who a peer is; behind one address all are one.
Source: RFC 970, "Fairness" (a line for each source, served in turn).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from nodeattest_providers.errors import Reason, Unavailable

__all__ = ["FairSemaphore"]

_AT_ONCE: Final = 16
_MOST_WAITING: Final = 256
_PATIENCE: Final = 5.0
"""Seconds to wait for a turn."""


class FairSemaphore:
    """Places, and lines for them."""

    def __init__(
        self, *, at_once: int = _AT_ONCE, most_waiting: int = _MOST_WAITING, patience: float = _PATIENCE
    ) -> None:
        self._free = at_once
        self._most_waiting = most_waiting
        self._patience = patience
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Of each peer that waits, in the order of turns."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(line) for line in self._lines.values())

    @asynccontextmanager
    async def turn(self, peer: str) -> AsyncGenerator[None]:
        """Wait for a turn, and have it; raises ``Unavailable``."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(peer)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, peer: str) -> None:
        """Stand in line until it is our turn.

        1. There is room, or the longest line makes some. 2. Stand at the end of the peer's own. 3. Wait.
        """
        # 1
        if self.waiting >= self._most_waiting:
            longest = max(self._lines, key=lambda each: len(self._lines[each]))
            if len(self._lines[longest]) <= len(self._lines.get(peer, ())) + 1:
                raise _busy()
            self._lines[longest].pop().set_exception(_busy())
        # 2
        line = self._lines.setdefault(peer, deque())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        # 3
        try:
            async with asyncio.timeout(self._patience):
                await turn
        except BaseException as error:
            if turn in line:
                line.remove(turn)
                if not line:
                    self._lines.pop(peer, None)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on()  # it came too late
            if isinstance(error, TimeoutError):
                raise _busy() from None
            raise

    def _pass_on(self) -> None:
        """Give a turn to the first of the next line, which then is the last of the lines."""
        while self._lines:
            peer, line = self._lines.popitem(last=False)
            turn = line.popleft()
            if line:
                self._lines[peer] = line
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def _busy() -> Unavailable:
    return Unavailable(
        Reason.API_UNAVAILABLE,
        "too many tokens wait for the API server's review",
        remedy="ask again in some seconds; see who sends so many unknown tokens",
    )
