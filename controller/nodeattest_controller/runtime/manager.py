"""Runs everything that acts while this replica leads, and logs what keeps a part from its work.

No in-memory state survives the loss of leadership: a new manager is built each time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.runtime.cluster_manager import ClusterManager
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.supervisor import supervise
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventLimiter
from nodeattest_kube.periodic import call_every

PERIOD: Final = 60.0
"""Seconds between two lines about the same error."""
_CHECK_PERIOD: Final = 1.0
"""Seconds between two looks at the error; no request is sent for it."""


class TroubleLog:
    """Logs the present error of one part."""

    def __init__(
        self,
        log: logging.Logger,
        message: str,
        trouble: Callable[[], ApiError | None],
        remedy: Callable[[ApiError], str],
        *,
        clock: Callable[[], float] = time.monotonic,
        **more: object,
    ) -> None:
        """``trouble`` gives the error, None while there is none; ``more`` are further fields of the line."""
        self._log = log
        self._message = message
        self._trouble = trouble
        self._remedy = remedy
        self._more = more
        self._limiter = EventLimiter(clock)
        self._last = ""

    async def run(self) -> None:
        """Run until cancelled."""
        await call_every(_CHECK_PERIOD, self.check)

    def check(self) -> None:
        """Log the error if there is one that is due."""
        error = self._trouble()
        text = str(error) if error is not None else ""
        if error is not None and (self._limiter.allow(text, PERIOD) or text != self._last):
            self._log.warning(self._message, extra=fields(**self._more, error=text, remedy=self._remedy(error)))
        self._last = text


_LOG: Final = logging.getLogger(__name__)
Run = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """The parts, built and connected."""

    management: ManagementCache
    clusters: ClusterManager
    controllers: Mapping[str, Run]
    """What runs besides the controllers of each cluster, by name; each is restarted after a bug."""
    closers: Sequence[Run]
    """What has to be closed or flushed at the end."""

    def unhealthy(self) -> str | None:
        """Say what keeps this replica from serving; None when nothing does."""
        return self.management.unhealthy()

    async def run(self, identity: str) -> None:
        """Run until cancelled; no controller starts before the cache is complete."""
        async with asyncio.TaskGroup() as tasks:
            ready = asyncio.Event()
            tasks.create_task(self.management.run(ready))
            await ready.wait()
            _LOG.info("serving", extra=fields(identity=identity))
            for name, run in self.controllers.items():
                tasks.create_task(supervise(name, run))
            tasks.create_task(self.clusters.run())

    async def aclose(self) -> None:
        """Close clients and write Events that are under way."""
        for close in self.closers:
            await close()
