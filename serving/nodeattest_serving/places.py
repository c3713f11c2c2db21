"""How many connections there are, in all and of one client, and who gives way. Pure, but for ending who does.

Promises: never more than were allowed; where all are taken, a newcomer gets the place of whoever holds most, who loses
his oldest.
Leaves to others: who a client is, and to tell when a connection has ended.
"""

from __future__ import annotations

import asyncio

__all__ = ["Places"]


class Places:
    """The places of one kind of connections."""

    def __init__(self, most: int, most_of_client: int, *, renews: bool = False) -> None:
        """``renews``: a client whose places are all taken gets a new one for his oldest; else he gets none."""
        self.turned_away = 0
        """Connections that got no place, or lost theirs."""
        self._most = most
        self._most_of_client = most_of_client
        self._renews = renews
        self._count = 0
        self._clients: dict[str, dict[asyncio.Transport, None]] = {}
        """Connections of each client that has any, the oldest first."""

    def may_come(self, client: str) -> bool:
        """Tell whether a client is below his own limit, or gives one of his up."""
        if self._renews or len(self._clients.get(client, ())) < self._most_of_client:
            return True
        self.turned_away += 1
        return False

    def take(self, client: str, transport: asyncio.Transport) -> bool:
        """Give a connection a place, if need be at the cost of whoever has most; tell whether there was one.

        So a few clients that hold all they may do not keep others out: they lose their oldest.
        """
        own = len(self._clients.get(client, ()))
        if own >= self._most_of_client:
            self._end_oldest(client)
        elif self._count >= self._most:
            greediest = max(self._clients, key=lambda each: len(self._clients[each]))
            if len(self._clients[greediest]) <= own and not self._renews:
                self.turned_away += 1
                return False
            self._end_oldest(greediest)
        self._clients.setdefault(client, {})[transport] = None
        self._count += 1
        return True

    def leave(self, client: str, transport: asyncio.Transport) -> None:
        """Free a connection's place, if it has one."""
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
