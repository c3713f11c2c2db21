"""Share the event loop between what tenants' API servers send.

Each piece of input is handled in a turn: bytes to decrypt, an answer to parse, the objects of a page. Namespaces take
turns round robin, and so do the clusters of a namespace. After a turn nobody gets one for as long as it took, so all
tenants' input together takes at most half of the event loop's time. The time is measured, not the bytes: TLS records of
one byte cost a hundred times their bytes. What comes before a turn can be taken is charged.
Out of scope: the management cluster, which needs no turn.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, cast

from aiohttp import StreamReader

from nodeattest_kube.workqueue import FairQueue

READ: Final = 1 << 14
"""Bytes of one read; asyncio would take 256 KiB. At most two reads are decrypted in a turn."""
_CREDIT: Final = 0.01
"""Seconds of rest that may be outstanding: turns are shorter than what a timer can wait."""
_OVERHEAD: Final = 50e-6
"""Seconds of a turn beside what is measured: to stop and start a socket, to wake a task."""


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    group: tuple[str, str]
    grant: Callable[[], bool]
    """Lets the loop call the piece next; returns whether it is still wanted."""


class InputScheduler:
    """The turns of all tenants. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: FairQueue[_Turn] = FairQueue(lambda turn: turn.group, (sys.maxsize, sys.maxsize))
        self._is_busy = False
        """Whether a turn is waited for or taken."""
        self._began = 0.0
        self._rested_at = 0.0
        """When the loop will have rested from all turns so far, on its clock."""

    def cluster(self, namespace: str, name: str) -> ClusterInput:
        """Return what schedules the input of one cluster."""
        return ClusterInput(self, (namespace, name))

    def add(self, group: tuple[str, str], grant: Callable[[], bool]) -> None:
        """Call ``grant`` when the group's turn comes. The turn's piece is what it has the loop call next."""
        loop = asyncio.get_running_loop()
        self._waiting.add(_Turn(group, grant), since=loop.time())
        if not self._is_busy:
            self._is_busy = True
            self._schedule()

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_at(self._rested_at - _CREDIT, self._grant)

    def _grant(self) -> None:
        loop = asyncio.get_running_loop()
        while (turn := self._waiting.take()) is not None:
            self._waiting.done(turn)
            # The loop calls these in this order, with nothing in between.
            loop.call_soon(self._begin)
            if turn.grant():
                loop.call_soon(self._end)
                return
        self._is_busy = False

    def _begin(self) -> None:
        self._began = asyncio.get_running_loop().time()

    def _end(self) -> None:
        self.charge(self._began, _OVERHEAD)
        if self._waiting:
            self._schedule()
        else:
            self._is_busy = False

    def charge(self, began: float, seconds: float) -> None:
        """Rest for as long as a piece took: from ``began`` on the loop's clock until now, and ``seconds`` besides."""
        spent = asyncio.get_running_loop().time() - began + seconds
        self._rested_at = max(self._rested_at, began) + 2 * spent


class ClusterInput:
    """The turns of one cluster."""

    def __init__(self, scheduler: InputScheduler, group: tuple[str, str]) -> None:
        self._group = group
        self._scheduler = scheduler

    def turn(self) -> asyncio.Future[None]:
        """Return what is done when the cluster's next turn comes. What follows until the next await is the piece."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_in_turn(partial(_wake, granted))
        return granted

    def call_in_turn(self, grant: Callable[[], bool]) -> None:
        """Call ``grant`` in the cluster's next turn. If it returns True, what the loop calls next is the piece."""
        self._scheduler.add(self._group, grant)

    def charge(self, seconds: float) -> None:
        """Count a piece that was handled outside of a turn."""
        self._scheduler.charge(asyncio.get_running_loop().time(), seconds)


def _wake(granted: asyncio.Future[None]) -> bool:
    if granted.done():
        return False
    granted.set_result(None)
    return True


class _Limited(Protocol):
    """What a TLS transport has besides what typeshed knows of transports."""

    def set_read_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Stop reading the socket at so many bytes that are not decrypted."""
        ...


class PacedInput:
    """The body of one answer as it is decrypted: a piece in each turn, while somebody waits for it.

    Between two turns the socket is not read.
    """

    def __init__(
        self, turns: ClusterInput, transport: asyncio.Transport, body: StreamReader, on_end: Callable[[], None]
    ) -> None:
        self._turns, self._transport, self._body, self._on_end = turns, transport, body, on_end
        self._is_wanted = False
        self._has_come = True
        """Whether bytes may wait that are not decrypted."""
        self._is_waiting = False
        cast("_Limited", transport).set_read_buffer_limits(READ)
        transport.pause_reading()

    def want(self) -> None:
        """Decrypt a piece in the next turn, or in the first one after bytes came."""
        if not self._is_over():
            self._transport.pause_reading()  # aiohttp may have started it
            self._is_wanted = True
            self._wait_for_turn()

    def got(self) -> None:
        """Decrypt nothing more until somebody wants it."""
        self._is_wanted = False

    def come(self) -> None:
        """Note that the socket has received bytes."""
        self._has_come = True
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if self._is_wanted and self._has_come and not self._is_waiting:
            self._is_waiting = True
            self._turns.call_in_turn(self._grant)

    def _grant(self) -> bool:
        """Have the loop decrypt what came, and then stop."""
        self._is_waiting = self._has_come = False
        if self._is_over():
            return False
        self._transport.resume_reading()  # has the loop call what decrypts
        asyncio.get_running_loop().call_soon(self._stop)
        return True

    def _stop(self) -> None:
        if self._is_over():
            self._on_end()
        else:
            self._transport.pause_reading()

    def _is_over(self) -> bool:
        """Whether the answer is read: its connection may serve another request already."""
        return self._body.is_eof() or self._transport.is_closing()
