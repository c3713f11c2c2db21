"""Connection slots, in total and per client. Pure, except that it aborts the connections that it replaces.

At the total limit, a new connection replaces the oldest one of the client that holds most; where each has only one, it
can wait until that has been there for a second (``delay``). A connection that is kept,
because its last request was that of an authenticated caller, is replaced only if all others are kept, too: then an idle
one of the caller who has most. A kept connection with a request in progress is never replaced. One caller has at most
a quarter of all slots (``share_of_owner``) for connections that are kept and idle.
Leaves to others: what identifies a client and a caller, the limit of a caller's requests in progress, and the report of
a connection's end.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nodeattest_serving.pending_slots import PROTECTED

__all__ = ["ConnectionSlots", "share_of_owner"]

_OWNERS: Final = 4
"""Callers that together can keep all slots: two might be one person's accounts."""


def share_of_owner(most: int) -> int:
    """Return how many of ``most`` slots one authenticated caller can keep from others."""
    return max(1, most // _OWNERS)


@dataclass(slots=True)
class _Kept:
    """The kept connections of one owner, the least recently used first, each with its client."""

    busy: dict[asyncio.Transport, str] = field(default_factory=dict[asyncio.Transport, str])
    """With a request in progress."""
    idle: dict[asyncio.Transport, str] = field(default_factory=dict[asyncio.Transport, str])

    def __len__(self) -> int:
        return len(self.busy) + len(self.idle)


class ConnectionSlots:
    """The slots of one kind of connections."""

    def __init__(
        self,
        most: int,
        most_of_client: int,
        *,
        replaces_oldest: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``replaces_oldest``: at its own limit, a client's new connection replaces its oldest; else it is refused."""
        self.turned_away = 0
        """Connections that got no slot, or lost theirs."""
        self._most = most
        self._most_of_client = most_of_client
        self._replaces_oldest = replaces_oldest
        self._counts: Counter[str] = Counter()
        """Connections of each client."""
        self._replaceable: dict[str, dict[asyncio.Transport, None]] = {}
        """Connections of each client that are not kept, the oldest first."""
        self._kept: dict[str, _Kept] = {}
        """By owner."""
        self._owners: dict[asyncio.Transport, str] = {}
        """Of each kept connection."""
        self._now = now
        self._since: dict[asyncio.Transport, float] = {}
        """When each got its slot."""

    def may_come(self, client: str) -> bool:
        """Whether a client is below its own limit, or may replace a connection."""
        if self._replaces_oldest or self._counts[client] < self._most_of_client:
            return True
        self.turned_away += 1
        return False

    def delay(self) -> float:
        """Return the seconds until a new connection does not replace a client's only one in its first second."""
        if self._counts.total() < self._most:
            return 0.0
        loser = max(self._replaceable, key=self._replaceable_count, default=None)
        if loser is None or self._replaceable_count(loser) > 1:
            return 0.0
        return max(0.0, PROTECTED - (self._now() - self._since[next(iter(self._replaceable[loser]))]))

    def take(self, client: str, transport: asyncio.Transport) -> bool:
        """Give a connection a slot, if need be that of another; False if there is none, or ``may_come`` says so.

        The other one is the oldest of the client that holds most: so a few clients at their limits do not keep others
        out. Where all are kept, it is an idle one of the owner who has most.
        """
        if not self.may_come(client):
            return False
        full = self._counts[client] >= self._most_of_client
        loser: str | None = client if full else None
        if not full and self._counts.total() >= self._most:
            full = True
            loser = max(self._replaceable, key=self._replaceable_count, default=None)
            if loser is not None and not self._replaces_oldest:
                loser = loser if self._replaceable_count(loser) > self._replaceable_count(client) else None
        if full and (loser is None or not self._end_oldest(loser)) and not self._end_idle():
            self.turned_away += 1
            return False
        self._replaceable.setdefault(client, {})[transport] = None
        self._counts[client] += 1
        self._since[transport] = self._now()
        return True

    def keep(self, client: str, transport: asyncio.Transport, owner: str) -> None:
        """Replace a connection by no other: a request of this authenticated caller is in progress on it.

        Over the owner's share, the least recently used idle one is kept no longer.
        """
        if not self._remove(client, transport):
            return
        kept = self._kept.setdefault(owner, _Kept())
        kept.busy[transport] = client
        self._owners[transport] = owner
        if len(kept) > share_of_owner(self._most) and kept.idle:
            oldest, its_client = next(iter(kept.idle.items()))
            self._remove(its_client, oldest)
            self._replaceable.setdefault(its_client, {})[oldest] = None

    def request_ended(self, client: str, transport: asyncio.Transport, *, authenticated: bool) -> None:
        """Keep a connection while it is idle if its request was that of an authenticated caller, else no longer."""
        owner = self._owners.get(transport)
        if owner is None:
            return
        if authenticated:
            kept = self._kept[owner]
            kept.idle[transport] = kept.busy.pop(transport)
        else:
            self._remove(client, transport)
            self._replaceable.setdefault(client, {})[transport] = None

    def leave(self, client: str, transport: asyncio.Transport) -> None:
        """Free a connection's slot, if it has one."""
        if not self._remove(client, transport):
            return
        del self._since[transport]
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]

    def _replaceable_count(self, client: str) -> int:
        return len(self._replaceable.get(client, ()))

    def _remove(self, client: str, transport: asyncio.Transport) -> bool:
        """Remove a connection from those that are kept or not; False if it has no slot."""
        owner = self._owners.pop(transport, None)
        if owner is not None:
            kept = self._kept[owner]
            kept.busy.pop(transport, None)
            kept.idle.pop(transport, None)
            if not len(kept):
                del self._kept[owner]
            return True
        held = self._replaceable.get(client, {})
        if transport not in held:
            return False
        del held[transport]
        if not held:
            del self._replaceable[client]
        return True

    def _end_oldest(self, client: str) -> bool:
        """End the oldest connection of a client that is not kept; False if there is none."""
        oldest = next(iter(self._replaceable.get(client, ())), None)
        if oldest is None:
            return False
        self._end(client, oldest)
        return True

    def _end_idle(self) -> bool:
        """End the least recently used idle connection of the owner who has most; False if none is idle."""
        kept = max((each for each in self._kept.values() if each.idle), key=len, default=None)
        if kept is None:
            return False
        transport, client = next(iter(kept.idle.items()))
        self._end(client, transport)
        return True

    def _end(self, client: str, transport: asyncio.Transport) -> None:
        self.turned_away += 1
        self.leave(client, transport)
        transport.abort()
