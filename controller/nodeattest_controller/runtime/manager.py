"""Runs everything that acts while this replica leads.

No in-memory state survives the loss of leadership: a new manager is built each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.runtime.cluster_manager import ClusterManager
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.supervisor import supervise

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
        return self.management.caches.unhealthy()

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
