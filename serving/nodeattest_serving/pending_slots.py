"""Slots of connections that are not authenticated, or not yet. Pure, except that it aborts those that it replaces.

A new connection over the limit of its client replaces that client's oldest one; over the limit of all, the oldest one
of the client that holds most. So no number of connections from few addresses costs a client its handshake. Where no
client holds more than an eighth of all, it replaces the oldest of all: a handshake takes milliseconds, so what was
there before it is what only holds its slot, and a client with several handshakes at one time loses none of them to many
clients with one silent connection each.
Leaves to others: what identifies a client, and the report of a connection's end.
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["PendingSlots"]

_FEW: Final = 8
"""Clients that hold more than each other one's share have to be fewer."""


class PendingSlots:
    """The slots of one listener."""

    def __init__(self, most: int, most_of_client: int) -> None:
        """``most_of_client``: at most as many of all."""
        self.turned_away = 0
        """Connections that lost their slot."""
        self._most = most
        self._most_of_client = most_of_client
        self._clients: dict[asyncio.Transport, str] = {}
        """Of each connection, the oldest first."""
        self._held: dict[str, dict[asyncio.Transport, None]] = {}
        """Connections of each client, the oldest first."""

    def may_come(self, _client: str) -> bool:
        """Whether a client may have one more: always, at the cost of another connection."""
        return True

    def take(self, client: str, transport: asyncio.Transport) -> bool:
        """Give a connection a slot, if need be that of another; always True."""
        held = self._held.get(client, {})
        if len(held) >= self._most_of_client:
            self._end(client, next(iter(held)))
        elif len(self._clients) >= self._most:
            self._end_oldest_of_most()
        self._clients[transport] = client
        self._held.setdefault(client, {})[transport] = None
        return True

    def leave(self, client: str, transport: asyncio.Transport) -> None:
        """Free a connection's slot, if it has one."""
        if self._clients.pop(transport, None) is None:
            return
        held = self._held[client]
        del held[transport]
        if not held:
            del self._held[client]

    def _end_oldest_of_most(self) -> None:
        most = max(len(each) for each in self._held.values())
        least = most if most > self._most // _FEW else 1
        for transport, client in self._clients.items():
            if len(self._held[client]) >= least:
                self._end(client, transport)
                return

    def _end(self, client: str, transport: asyncio.Transport) -> None:
        self.turned_away += 1
        self.leave(client, transport)
        transport.abort()
