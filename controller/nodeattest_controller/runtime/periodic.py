"""When a controller that watches nothing looks at its cluster: soon after a change, else now and then.

Promises: looks of many clusters do not go in step, and take no more than a tenth of the time; after a failure nothing
but time lets another one begin. A kill at any instant costs nothing: each look begins anew.
Leaves to others: what a look does, and what is told of its failure (``PeriodicTask``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from nodeattest_kube.client import ApiError

__all__ = ["PeriodicReconciler", "PeriodicTask", "ResyncConfig"]

_SHARE: Final = 10
"""One part in so many of the time may be spent looking."""
_MOST_DOUBLINGS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ResyncConfig:
    """How often; seconds. Every wait is drawn between 0.8 and 1.2 of it."""

    spread: float = 2.0
    """The first look comes within this time."""
    period: float = 60.0
    gap: float = 10.0
    """Between two looks at least, however much changes."""
    urgent: float = 1.0
    """The same, where ``hurry`` was called."""
    retry: float = 5.0
    """After a failure; doubled each time, up to ``longest``."""
    longest: float = 300.0


class PeriodicTask(Protocol):
    """What is done in one cluster."""

    async def look(self) -> bool:
        """Look and act; tells whether to look again after ``gap`` though nothing changes. Raises ``ApiError``."""
        ...

    async def failed(self, error: ApiError, failures: int, pause: float) -> None:
        """Tell of the last of so many failures in a row; the next look comes after ``pause`` seconds."""
        ...


class PeriodicReconciler:
    """One controller's looks at one cluster (``fleet.duties.Work``)."""

    def __init__(
        self, looker: PeriodicTask, pace: ResyncConfig, *, clock: Callable[[], float], chance: Callable[[], float]
    ) -> None:
        self._looker = looker
        self._pace = pace
        self._clock = clock
        self._chance = chance
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._failures = 0

    @property
    def synced(self) -> bool:
        """Nothing is watched."""
        return True

    @property
    def last_error(self) -> ApiError | None:
        """None: what fails is told by ``failed``, and says nothing of how requests are served."""
        return None

    def changed(self) -> None:
        """Look again soon."""
        self._wake.set()

    def hurry(self) -> None:
        """Look again after ``urgent`` seconds, whatever the last look cost, and though it failed."""
        self._urgent.set()
        self._wake.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        await asyncio.sleep(self._pace.spread * self._chance())
        while True:
            self._wake.clear()
            self._urgent.clear()
            begun = self._clock()
            pause = await self._once() * (0.8 + 0.4 * self._chance())
            if self._failures:
                await self._rest(pause)
                continue
            await self._rest(max(min(self._pace.gap, pause), _SHARE * (self._clock() - begun)))
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except TimeoutError:
                continue

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or for ``urgent`` seconds where it is urgent."""
        await asyncio.sleep(min(self._pace.urgent, seconds))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._urgent.wait(), max(0.0, seconds - self._pace.urgent))

    async def _once(self) -> float:
        """Look; returns how long to wait."""
        try:
            soon = await self._looker.look()
        except ApiError as error:
            self._failures += 1
            pause = min(self._pace.retry * 2 ** min(self._failures - 1, _MOST_DOUBLINGS), self._pace.longest)
            await self._looker.failed(error, self._failures, pause)
            return pause
        self._failures = 0
        return self._pace.gap if soon else self._pace.period
