"""Runs a program that serves: its listener, its health server and its tasks; and the registry of its metrics.

Whatever was started is stopped when ``run_server`` ends, however it ends. Signals are the caller's, who cancels.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest

from nodeattest_serving.health import HealthServer, export_build_info
from nodeattest_serving.http_server import HttpListener

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports that a program listens on."""

    main: int
    health: int | None
    """None: not enabled."""


class ProgramMetrics:
    """Metrics of one program, in a registry of its own; no label's value comes from a request."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        export_build_info(self.registry)

    def render(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self.registry)


async def run_server(
    server: HttpListener,
    health: HealthServer | None,
    tasks: Iterable[Callable[[], Awaitable[None]]],
    started: Callable[[Ports], None],
) -> None:
    """Serve until cancelled; raises ``SettingsError``. ``started`` gets the ports as soon as all listen."""
    async with AsyncExitStack() as stack:
        for each in (server, health):
            if each is not None:
                await each.start()
                stack.push_async_callback(each.stop)
        ports = Ports(main=server.port, health=None if health is None else health.port)
        _log.info("serving on port %d, health on %s", ports.main, ports.health or "none")
        started(ports)
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(_run(task))
            group.create_task(asyncio.Event().wait())


async def _run(task: Callable[[], Awaitable[None]]) -> None:
    await task()
