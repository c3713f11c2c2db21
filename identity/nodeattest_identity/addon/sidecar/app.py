"""Runs a sidecar: verifier, forwarder, listeners, and an orderly stop.

Promises: whatever was started is stopped when ``run`` ends, however it ends; requests in flight get a moment to finish.
Leaves signals to the caller, who cancels.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final

from nodeattest_identity.addon.sidecar.caller import Verifier
from nodeattest_identity.addon.sidecar.service import Metrics, SidecarService, SidecarSettings
from nodeattest_identity.addon.sidecar.verifiers import CachedVerifier
from nodeattest_identity.proxy.forward import Forwarder
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_serving.health import HealthServer
from nodeattest_serving.tls import ServingCertificate

REVIEW_CACHE_SECONDS: Final = 10.0
"""Seconds that a TokenReview is cached, as in kube-apiserver: a revoked token stays valid for that long."""
JWT_CACHE_SECONDS: Final = 300.0
"""Seconds that a verified JWT is cached, if it lasts: a revoked key is noticed within this time."""
_SECRET: Final = 32

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports that a sidecar listens on; None: not enabled."""

    proxy: int
    health: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSetup:
    """The verifier, and the tasks that it needs."""

    verifier: Verifier
    keep: float
    """Seconds that an answer of the verifier is cached."""
    unready_reason: Callable[[], str | None]
    """Returns why no token can be verified now; None if they can."""
    tasks: tuple[Callable[[], Awaitable[None]], ...] = ()


def with_task(setup: VerifierSetup, task: Callable[[], Awaitable[None]]) -> VerifierSetup:
    """Add a task."""
    return replace(setup, tasks=(*setup.tasks, task))


async def run(
    settings: SidecarSettings,
    setup: VerifierSetup,
    *,
    started: Callable[[Ports], None],
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serve until cancelled; raises ``SettingsError``. ``started`` gets the ports as soon as all listen."""
    metrics = Metrics()
    tls = None
    if settings.certificate is not None and settings.key is not None:
        tls = ServingCertificate(settings.certificate, settings.key, clock=clock).context
    async with AsyncExitStack() as stack:
        forwarder = await stack.enter_async_context(Forwarder(settings.limits))
        verified = CachedVerifier(
            setup.verifier, keep=setup.keep, secret=secrets.token_bytes(_SECRET), now=now, clock=clock
        )
        service = SidecarService(
            settings, verified, forwarder, metrics=metrics, now=now, new_id=lambda: secrets.token_hex(8)
        )
        server = ProxyServer(service.handle, settings.address, tls, settings.limits, refused=metrics.refused)
        await server.start()
        stack.push_async_callback(server.stop)
        metrics.watch(lambda: service.in_flight, lambda: server.turned_away)
        health = None
        if settings.health is not None:
            listener = HealthServer(settings.health, {"verifiers": setup.unready_reason}, metrics)
            await listener.start()
            stack.push_async_callback(listener.stop)
            health = listener.port
        _log.info("forwarding from port %d to %s, health on %s", server.port, settings.upstream, health or "none")
        started(Ports(proxy=server.port, health=health))
        async with asyncio.TaskGroup() as group:
            for task in setup.tasks:
                group.create_task(_run(task))
            group.create_task(asyncio.Event().wait())


async def _run(task: Callable[[], Awaitable[None]]) -> None:
    await task()
