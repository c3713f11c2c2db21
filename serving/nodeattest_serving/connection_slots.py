"""Connection slots, in total and per client. Pure, except that it aborts the connections that it replaces.

At the total limit, a new connection replaces the oldest one of the client that holds most. A connection that is kept,
because its client authenticated, is never replaced.
Leaves to others: what identifies a client, and the report of a connection's end.
"""

from __future__ import annotations

import asyncio
from collections import Counter

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
        self._counts: Counter[str] = Counter()
        """Connections of each client."""
        self._replaceable: dict[str, dict[asyncio.Transport, None]] = {}
        """Connections of each client that may be replaced, the oldest first."""
        self._kept: set[asyncio.Transport] = set()

    def may_come(self, client: str) -> bool:
        """Whether a client is below its own limit, or may replace one of its connections."""
        if self._replaces_oldest or self._counts[client] < self._most_of_client:
            return True
        self.turned_away += 1
        return False

    def take(self, client: str, transport: asyncio.Transport) -> bool:
        """Give a connection a slot, if need be that of the client that holds most; False if there is none.

        So a few clients at their limits do not keep others out.
        """
        loser: str | None = None
        full = self._counts[client] >= self._most_of_client
        if full:
            loser = client
        elif self._counts.total() >= self._most:
            full = True
            loser = max(self._replaceable, key=self._replaceable_count, default=None)
            if loser is not None and not self._replaces_oldest:
                loser = loser if self._replaceable_count(loser) > self._replaceable_count(client) else None
        if full and (loser is None or not self._end_oldest(loser)):
            self.turned_away += 1
            return False
        self._replaceable.setdefault(client, {})[transport] = None
        self._counts[client] += 1
        return True

    def keep(self, client: str, transport: asyncio.Transport) -> None:
        """Replace a connection by no other from now on."""
        if transport in self._replaceable.get(client, ()):
            self._remove(client, transport)
            self._kept.add(transport)

    def leave(self, client: str, transport: asyncio.Transport) -> None:
        """Free a connection's slot, if it has one."""
        if transport in self._kept:
            self._kept.remove(transport)
        elif transport in self._replaceable.get(client, ()):
            self._remove(client, transport)
        else:
            return
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]

    def _replaceable_count(self, client: str) -> int:
        return len(self._replaceable.get(client, ()))

    def _remove(self, client: str, transport: asyncio.Transport) -> None:
        held = self._replaceable[client]
        del held[transport]
        if not held:
            del self._replaceable[client]

    def _end_oldest(self, client: str) -> bool:
        """End the oldest connection of a client that may be replaced; False if there is none."""
        oldest = next(iter(self._replaceable.get(client, ())), None)
        if oldest is None:
            return False
        self.turned_away += 1
        self.leave(client, oldest)
        oldest.abort()
        return True
