"""How much time the event loop spends on what each tenant's API servers answer, so that none keeps it busy.

Bytes are charged as they come, also of an answer that turns out too large; values before they are parsed, since parsing
holds the loop; objects and events before they are handed over. Who is over its rate waits; TCP slows its server down
meanwhile. Leaves to others: the size of one answer, and so of what is parsed in one piece (``paging``).
Source: generic cell rate algorithm (ITU-T I.371).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["BURST", "EVENT", "LONG", "OBJECT", "RATE", "Pace", "ReadPace", "parsing_cost", "reading_cost"]

Pace = Callable[[int], Awaitable[None]]
"""Waits until work of such a cost may be done, in nanoseconds of the loop; costs are what was measured, and some more.
"""

RATE: Final = 333_000_000
"""Cost a second, a third of a core: some 2,000 events of ordinary requests, or seven of 100,000 values."""
BURST: Final = 2 * RATE
"""Cost at once: what a connection reads at its start."""
EVENT: Final = 40_000
"""Of an event of a watch, besides its bytes and values: a cache takes it in."""
OBJECT: Final = 20_000
"""The same of an object of a list."""
_PIECE: Final = 20_000
"""Of bytes that come together, whether one or thousands."""
_CHUNK: Final = 200
"""Of a chunk (RFC 9112 §7.1) in them."""
_BYTE: Final = 8
"""To take it on and to parse it; to decrypt it is measured (``paced_input``)."""
_VALUE: Final = 400
_POINT: Final = 800
"""What a number with a point takes besides; a point in a text counts, too."""
_SURROGATES: Final = (rb"\ud", rb"\uD")
"""A document with one is looked through twice (``strict_json``)."""
_SHARE: Final = 2
"""A tenant's rate and burst over what each of its clients has for itself: a cluster that floods leaves half to others.

Of the other half it gets what nobody uses: what the tenant owes stays below half of the burst then.
"""
_INSTANT: Final = 1e-6
"""Seconds for which nobody waits."""
LONG: Final = 2_500_000
"""Cost, in one or many pieces, above which others get a turn in any case."""


def reading_cost(size: int, chunks: int = 1) -> int:
    """Tell what it costs to receive so many bytes together, in so many chunks."""
    return _PIECE + _BYTE * size + _CHUNK * chunks


def parsing_cost(body: bytes) -> int:
    """Tell what it costs to parse a JSON document that was read; its values are counted by their separators."""
    cost = _VALUE * sum(body.count(each) for each in (b",", b"{", b"[")) + _POINT * body.count(b".")
    return 2 * cost if any(escape in body for escape in _SURROGATES) else cost


class ReadPace:
    """The rates of all tenants."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``clock`` is monotonic seconds."""
        self._clock = clock
        self._sleep = sleep
        self._due: dict[str, float] = {}
        """When all that a tenant has read so far is paid for."""

    @property
    def tenants(self) -> int:
        """How many tenants something is kept of."""
        return len(self._due)

    def of(self, tenant: str) -> Pace:
        """Return the pace of one of a tenant's clients."""
        begun, unbroken = self._clock(), 0
        self._due = {tenant: due for tenant, due in self._due.items() if due > begun}  # the others owe nothing
        own_due = 0.0

        async def pace(cost: int) -> None:
            nonlocal own_due, unbroken
            now = self._clock()
            own_due = mine = max(own_due, now) + cost * _SHARE / RATE
            while True:  # before it is charged to the tenant: who waits here keeps nobody else waiting
                beyond = mine - now - BURST / RATE
                until_room = max(self._due.get(tenant, now) - now, 0.0) + (cost - BURST / _SHARE) / RATE
                if min(beyond, until_room) <= _INSTANT:
                    break
                await self._sleep(min(beyond, until_room))
                now = self._clock()
            own_due -= max(beyond, 0.0)  # nobody used it, so it is not owed
            due = self._due[tenant] = max(self._due.get(tenant, now), now) + cost / RATE
            wait = due - now - BURST / RATE
            unbroken += cost
            if wait > 0 or unbroken > LONG:
                unbroken = 0
                await self._sleep(max(0.0, wait))

        return pace
