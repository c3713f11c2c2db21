"""Share the event loop between what tenants' API servers send.

Each piece of input is handled in a turn: 16 KiB to decrypt, an answer to parse, the objects of a page. Namespaces take
turns round robin, and so do the clusters of a namespace. After a turn nobody gets one for as long as it took, so all
tenants' input together takes at most half of the event loop's time.
Out of scope: how large a piece is (``scheduled_input``, ``paging``), and the management cluster, which needs no turn.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_kube.fair_queue import FairQueue

__all__ = ["ClusterInput", "InputScheduler"]

_CREDIT: Final = 0.01
"""Seconds of rest that may be outstanding: turns are shorter than what a timer can wait."""
_OVERHEAD: Final = 50e-6
"""Seconds of a turn beside what is measured: to stop and start a socket, to wake a task."""
_RECEIVING: Final = 10e-6
"""The same of a piece that needs no turn, since nobody waits."""


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    group: tuple[str, str]
    granted: asyncio.Future[None]


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

    def turn(self, group: tuple[str, str]) -> asyncio.Future[None]:
        """Return what is done when the turn comes. What follows it until the next await is the turn's piece."""
        loop = asyncio.get_running_loop()
        turn = _Turn(group, loop.create_future())
        self._waiting.add(turn, since=loop.time())
        if not self._is_busy:
            self._is_busy = True
            self._schedule()
        return turn.granted

    def handle_at_once(self, piece: Callable[[], None]) -> bool:
        """Handle a piece if nobody waits for a turn; return whether it was handled."""
        now = asyncio.get_running_loop().time()
        if self._is_busy or self._rested_at - now > _CREDIT:
            return False
        try:
            piece()
        finally:
            self._charge(now, _RECEIVING)
        return True

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_at(self._rested_at - _CREDIT, self._grant)

    def _grant(self) -> None:
        """Grant the next turn."""
        loop = asyncio.get_running_loop()
        while (turn := self._waiting.take()) is not None:
            self._waiting.done(turn)
            if not turn.granted.done():
                # The loop calls these in this order, with nothing in between.
                loop.call_soon(self._begin)
                turn.granted.set_result(None)
                loop.call_soon(self._end)
                return
        self._is_busy = False

    def _begin(self) -> None:
        self._began = asyncio.get_running_loop().time()

    def _end(self) -> None:
        self._charge(self._began, _OVERHEAD)
        if self._waiting:
            self._schedule()
        else:
            self._is_busy = False

    def _charge(self, began: float, overhead: float) -> None:
        """Rest for as long as a piece took."""
        spent = asyncio.get_running_loop().time() - began + overhead
        self._rested_at = max(self._rested_at, began) + 2 * spent


class ClusterInput:
    """The turns of one cluster."""

    def __init__(self, scheduler: InputScheduler, group: tuple[str, str]) -> None:
        self._group = group
        self._scheduler = scheduler

    def turn(self) -> asyncio.Future[None]:
        """Return what is done when the cluster's next turn comes."""
        return self._scheduler.turn(self._group)

    def handle_at_once(self, piece: Callable[[], None]) -> bool:
        """Handle a piece if nobody waits for a turn; return whether it was handled."""
        return self._scheduler.handle_at_once(piece)
