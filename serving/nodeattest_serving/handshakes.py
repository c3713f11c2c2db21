"""Which clients are proven, and when the handshakes of others begin.

Handshakes of clients that are not proven begin at a fixed rate, round robin among clients: what strangers cost is
bounded, and each has its turn. Out of scope: what identifies a client, and what proves it.
Source: RFC 970, "Fairness" (a queue for each source, served round robin).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

__all__ = ["HandshakeBudget", "ProvenClients"]

_MAX_WAITING: Final = 256
_MAX_PROVEN: Final = 64
_UNUSED: Final = 3600.0
"""Seconds without a valid request after which a proven client can be replaced."""


class HandshakeBudget:
    """The budget of one listener.

    If too many wait, a client that already waits gets no further turn, so a flood costs a constant time a connection.
    A client that does not wait yet takes the newest turn of the client that has most.
    """

    def __init__(self, per_second: float) -> None:
        self._pause = 1 / per_second
        self._next = 0.0
        """Loop time of the next handshake."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs while any wait."""
        self._count = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[bool]]] = OrderedDict()
        """By client; the one that is served next is the first."""

    async def wait(self, client: str) -> bool:
        """Wait until a handshake of a client may begin; False: too many wait."""
        if self._count >= _MAX_WAITING and (client in self._waiting or not self._make_room()):
            return False
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        self._count += 1
        if self._timer is None:
            self._serve()
        return await turn

    def _serve(self) -> None:
        """Begin one: a busy event loop begins one in each pass, and so delays no handshake that has begun."""
        loop = asyncio.get_running_loop()
        now, self._timer = loop.time(), None
        if self._next <= now:
            client = next(iter(self._waiting))
            self._waiting.move_to_end(client)
            self._next = now + self._pause
            self._end(client, self._waiting[client].popleft(), may_begin=True)
        if self._waiting:
            self._timer = loop.call_at(self._next, self._serve)

    def _make_room(self) -> bool:
        """Take the newest turn of the client that has most; False if each has one."""
        client = max(self._waiting, key=lambda each: len(self._waiting[each]))
        if len(self._waiting[client]) < 2:  # noqa: PLR2004 - its only one
            return False
        self._end(client, self._waiting[client].pop(), may_begin=False)
        return True

    def _end(self, client: str, turn: asyncio.Future[bool], *, may_begin: bool) -> None:
        self._count -= 1
        if not self._waiting[client]:
            del self._waiting[client]
        if not turn.done():  # its connection may have ended
            turn.set_result(may_begin)


class ProvenClients:
    """Clients whose requests were valid.

    A new client replaces only one that has sent no valid request for an hour. So clients that prove themselves during
    an attack replace none that did so before it.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is monotonic seconds."""
        self._clock = clock
        self._used: OrderedDict[str, float] = OrderedDict()
        """When each sent its last valid request, the least recent first."""
        self.on_add: Callable[[str], None] = lambda _client: None
        """Called with each new client."""

    def __contains__(self, client: str) -> bool:
        """Return whether a client is proven."""
        return client in self._used

    def add(self, client: str) -> None:
        """Note a valid request of a client."""
        now, is_new = self._clock(), client not in self._used
        if is_new and len(self._used) >= _MAX_PROVEN:
            oldest, used = next(iter(self._used.items()))
            if now - used < _UNUSED:
                return
            del self._used[oldest]
        self._used[client] = now
        self._used.move_to_end(client)
        if is_new:
            self.on_add(client)
