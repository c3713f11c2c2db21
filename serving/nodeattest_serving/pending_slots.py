"""Slots of connections that are not authenticated, or not yet. Pure, except that it aborts those that it replaces.

A new connection over the limit of its client replaces that client's oldest one; over the limit of all, the oldest of
all, whoever has most: a handshake takes milliseconds, so what was there before it is what only holds its slot. So an
honest client with several handshakes at one time loses none of them to many clients with one silent connection each.
Leaves to others: what identifies a client, and the report of a connection's end.
"""

from __future__ import annotations

import asyncio

__all__ = ["PendingSlots"]


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
            oldest, its_client = next(iter(self._clients.items()))
            self._end(its_client, oldest)
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

    def _end(self, client: str, transport: asyncio.Transport) -> None:
        self.turned_away += 1
        self.leave(client, transport)
        transport.abort()
