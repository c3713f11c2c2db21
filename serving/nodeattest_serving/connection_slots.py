"""Connection slots, in total and per client. Pure, except that they abort the connections that they replace."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_OWNERS: Final = 4
"""Callers that together can keep all slots: two might be one person's accounts."""


def share_of_owner(most: int) -> int:
    """Return how many of ``most`` slots one authenticated caller can keep from others."""
    return max(1, most // _OWNERS)


_Group = dict[str, dict[asyncio.Transport, None]]
"""Connections by the name of who holds them, the oldest first."""


@dataclass(slots=True)
class _Slot:
    client: str
    owner: str | None = None
    """The authenticated caller; None: replaceable."""


class ConnectionSlots:
    """The slots of one kind of connections.

    A connection is replaceable until a request of an authenticated caller begins on it; then it is busy or idle, and a
    busy one is never replaced. At its own limit, a client's new connection replaces its oldest replaceable one. At the
    total limit, a new connection replaces, in this order:

    1. the least recently used idle one of a caller that keeps more than its share (``share_of_owner``)
    2. the oldest replaceable one of the client that holds most
    3. the least recently used idle one of the caller that keeps most
    """

    def __init__(self, most: int, most_of_client: int, on_reject: Callable[[], None] = lambda: None) -> None:
        """``on_reject`` is called for each connection that gets no slot, or loses its slot."""
        self._most = most
        self._most_of_client = most_of_client
        self._on_reject = on_reject
        self._slots: dict[asyncio.Transport, _Slot] = {}
        self._of_client: Counter[str] = Counter()
        self._of_owner: Counter[str] = Counter()
        self._replaceable: _Group = {}
        """By client."""
        self._idle: _Group = {}
        """By owner."""

    def take(self, client: str, transport: asyncio.Transport) -> bool:
        """Give a connection a slot, if need be that of another, which is aborted; False if there is none."""
        victim: asyncio.Transport | None = transport
        if self._of_client[client] >= self._most_of_client:
            victim = _oldest(self._replaceable, client) or self._idle_victim()
        elif len(self._slots) >= self._most:
            victim = self._victim()
        if victim is not transport:
            self._on_reject()
            if victim is None:
                return False
            self.leave(victim)
            victim.abort()
        self._slots[transport] = _Slot(client)
        self._of_client[client] += 1
        self._replaceable.setdefault(client, {})[transport] = None
        return True

    def keep(self, transport: asyncio.Transport, owner: str) -> None:
        """Note that a request of this authenticated caller is in progress on a connection."""
        slot = self._slots.get(transport)
        if slot is not None:
            self._set_owner(transport, slot, owner)

    def request_ended(self, transport: asyncio.Transport, *, authenticated: bool) -> None:
        """Keep a connection while it is idle if its request was that of an authenticated caller, else no longer."""
        slot = self._slots.get(transport)
        if slot is None or slot.owner is None:
            return
        if authenticated:
            self._idle.setdefault(slot.owner, {})[transport] = None
        else:
            self._set_owner(transport, slot, None)
            self._replaceable.setdefault(slot.client, {})[transport] = None

    def leave(self, transport: asyncio.Transport) -> None:
        slot = self._slots.pop(transport, None)
        if slot is not None:
            self._set_owner(transport, slot, None)
            self._of_client -= Counter((slot.client,))

    def _set_owner(self, transport: asyncio.Transport, slot: _Slot, owner: str | None) -> None:
        _discard(self._replaceable, slot.client, transport)
        if slot.owner is not None:
            _discard(self._idle, slot.owner, transport)
            self._of_owner -= Counter((slot.owner,))
        slot.owner = owner
        if owner is not None:
            self._of_owner[owner] += 1

    def _victim(self) -> asyncio.Transport | None:
        # 1
        hog = max(self._idle, key=self._of_owner.__getitem__, default=None)
        if hog is not None and self._of_owner[hog] > share_of_owner(self._most):
            return _oldest(self._idle, hog)
        # 2
        loser = max(self._replaceable, key=lambda each: len(self._replaceable[each]), default=None)
        if loser is not None:
            return _oldest(self._replaceable, loser)
        # 3
        return self._idle_victim()

    def _idle_victim(self) -> asyncio.Transport | None:
        owner = max(self._idle, key=self._of_owner.__getitem__, default=None)
        return None if owner is None else _oldest(self._idle, owner)


def _oldest(group: _Group, name: str) -> asyncio.Transport | None:
    return next(iter(group.get(name, ())), None)


def _discard(group: _Group, name: str, transport: asyncio.Transport) -> None:
    held = group.get(name, {})
    held.pop(transport, None)
    if not held:
        group.pop(name, None)
