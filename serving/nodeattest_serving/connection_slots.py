"""Connection slots, in total and per client. Pure, except that it aborts the connections that it replaces.

At the total limit, a new connection replaces the oldest one of the client that holds most.
Leaves to others: what identifies a client, and the report of a connection's end.
"""

from __future__ import annotations

import asyncio

__all__ = ["ConnectionSlots"]


class ConnectionSlots:
    """The slots of one kind of connections."""

    def __init__(self, most: int, most_of_client: int, *, replaces_oldest: bool = False) -> None:
        """``replaces_oldest``: at its own limit, a client's new connection replaces its oldest; else it is refused."""
        self.turned_away = 0
        """Connections that got no slot, or lost theirs."""
        self._most = most
        self._most_of_client = most_of_client
        self._replaces_oldest = replaces_oldest
        self._count = 0
        self._clients: dict[str, dict[asyncio.Transport, None]] = {}
        """Connections of each client that has any, the oldest first."""

    def may_come(self, client: str) -> bool:
        """Whether a client is below its own limit, or may replace one of its connections."""
        if self._replaces_oldest or len(self._clients.get(client, ())) < self._most_of_client:
            return True
        self.turned_away += 1
        return False

    def take(self, client: str, transport: asyncio.Transport) -> bool:
        """Give a connection a slot, if need be that of the client that holds most; False if there is none.

        So a few clients at their limits do not keep others out.
        """
        own = len(self._clients.get(client, ()))
        if own >= self._most_of_client:
            self._end_oldest(client)
        elif self._count >= self._most:
            greediest = max(self._clients, key=lambda each: len(self._clients[each]))
            if len(self._clients[greediest]) <= own and not self._replaces_oldest:
                self.turned_away += 1
                return False
            self._end_oldest(greediest)
        self._clients.setdefault(client, {})[transport] = None
        self._count += 1
        return True

    def leave(self, client: str, transport: asyncio.Transport) -> None:
        """Free a connection's slot, if it has one."""
        held = self._clients.get(client, {})
        if transport in held:
            del held[transport]
            self._count -= 1
        if not held:
            self._clients.pop(client, None)

    def _end_oldest(self, client: str) -> None:
        self.turned_away += 1
        oldest = next(iter(self._clients[client]))
        self.leave(client, oldest)
        oldest.abort()
