"""Slots of connections that are not authenticated, or not yet. Pure, except that it aborts those that it replaces.

A new connection over the limit of its client replaces that client's oldest one; over the limit of all, the oldest one
of the client that holds most. So no number of connections from few addresses costs a client its handshake. Where no
client holds more than an eighth of all, it replaces the oldest of all: a handshake takes milliseconds, so what was
there before it is what only holds its slot, and a client with several handshakes at one time loses none of them to many
clients with one silent connection each. But a client's only connection is not replaced in its first second: then it is
one of a client with several, if such clients hold more than a half, or a new one waits (``delay``),
unless many wait (``FairScheduler``).
Leaves to others: what identifies a client, and the report of a connection's end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

__all__ = ["PROTECTED", "PendingSlots"]

PROTECTED: Final = 1.0
"""Seconds in which a client's only connection is not replaced: a handshake takes two round trips, and milliseconds."""
_FEW: Final = 8
"""Clients that hold more than each other one's share have to be fewer."""


class PendingSlots:
    """The slots of one listener."""

    def __init__(self, most: int, most_of_client: int, *, now: Callable[[], float] = time.monotonic) -> None:
        """``most_of_client``: at most as many of all."""
        self.turned_away = 0
        """Connections that lost their slot."""
        self._most = most
        self._most_of_client = most_of_client
        self._clients: dict[asyncio.Transport, str] = {}
        """Of each connection, the oldest first."""
        self._held: dict[str, dict[asyncio.Transport, None]] = {}
        """Connections of each client, the oldest first."""
        self._now = now
        self._since: dict[asyncio.Transport, float] = {}
        """When each got its slot."""

    def delay(self) -> float:
        """Return the seconds until a new connection replaces none that is protected."""
        if len(self._clients) < self._most or self._replaced() is not None:
            return 0.0
        return PROTECTED - self._age(next(iter(self._clients)))

    def may_come(self, _client: str) -> bool:
        """Whether a client may have one more: always, at the cost of another connection."""
        return True

    def take(self, client: str, transport: asyncio.Transport) -> bool:
        """Give a connection a slot, if need be that of another; always True."""
        held = self._held.get(client, {})
        if len(held) >= self._most_of_client:
            self._end(client, next(iter(held)))
        elif len(self._clients) >= self._most:
            self._end_oldest()
        self._clients[transport] = client
        self._since[transport] = self._now()
        self._held.setdefault(client, {})[transport] = None
        return True

    def leave(self, client: str, transport: asyncio.Transport) -> None:
        """Free a connection's slot, if it has one."""
        if self._clients.pop(transport, None) is None:
            return
        del self._since[transport]
        held = self._held[client]
        del held[transport]
        if not held:
            del self._held[client]

    def _end_oldest(self) -> None:
        """End the connection that makes room; the oldest if each is protected, and nobody waited for that."""
        transport = self._replaced() or next(iter(self._clients))
        self._end(self._clients[transport], transport)

    def _replaced(self) -> asyncio.Transport | None:
        """Return the connection that would make room; None: each is protected.

        1. The oldest of the clients with most, if they have more than their share. 2. The oldest of all, if it is not
        protected. 3. The oldest of clients with several, if those hold more than a half.
        """
        # 1
        most = max(len(each) for each in self._held.values())
        if most > self._most // _FEW:
            return self._oldest(most)
        # 2
        oldest = next(iter(self._clients))
        if self._age(oldest) > PROTECTED:
            return oldest
        # 3
        several = sum(len(each) for each in self._held.values() if len(each) > 1)
        return self._oldest(2) if several > self._most // 2 else None

    def _oldest(self, least: int) -> asyncio.Transport:
        """Return the oldest connection of clients with at least so many."""
        return next(each for each, client in self._clients.items() if len(self._held[client]) >= least)

    def _age(self, transport: asyncio.Transport) -> float:
        return self._now() - self._since[transport]

    def _end(self, client: str, transport: asyncio.Transport) -> None:
        self.turned_away += 1
        self.leave(client, transport)
        transport.abort()
