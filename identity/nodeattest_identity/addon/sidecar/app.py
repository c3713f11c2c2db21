"""A sidecar, put together: who verifies, what forwards, the listeners, and an end in order.

Promises: whatever was started is stopped when ``run`` ends, however it ends; requests that are being answered then get
a moment. Leaves signals to the caller, who cancels.
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
from nodeattest_identity.addon.sidecar.metrics import Metrics
from nodeattest_identity.addon.sidecar.service import SidecarService
from nodeattest_identity.addon.sidecar.settings import SidecarSettings
from nodeattest_identity.addon.sidecar.verifier_cache import CachedVerifier
from nodeattest_identity.proxy.forward import Forwarder
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_serving.health import HealthServer
from nodeattest_serving.tls import ServingCertificate

__all__ = ["JWT_CACHE_SECONDS", "REVIEW_CACHE_SECONDS", "Ports", "VerifierSetup", "run", "with_task"]

REVIEW_CACHE_SECONDS: Final = 10.0
"""Seconds that a TokenReview counts: kube-apiserver's own, so a token that is taken back is good for that long."""
JWT_CACHE_SECONDS: Final = 300.0
"""Seconds that a verified JWT counts, if it lasts: so soon a key that was taken back is noticed."""
_SECRET: Final = 32

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a sidecar listens; None where it does not."""

    proxy: int
    health: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSetup:
    """Who verifies, and what has to run meanwhile."""

    verifier: Verifier
    keep: float
    """Seconds that an answer of the verifier counts."""
    trouble: Callable[[], str | None]
    """Why nobody can be verified now."""
    followers: tuple[Callable[[], Awaitable[None]], ...] = ()


def with_task(parts: VerifierSetup, follow: Callable[[], Awaitable[None]]) -> VerifierSetup:
    """Add what has to run meanwhile."""
    return replace(parts, followers=(*parts.followers, follow))


async def run(
    settings: SidecarSettings,
    parts: VerifierSetup,
    *,
    started: Callable[[Ports], None],
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serve until cancelled; raises ``SettingsError``. ``started`` is told the ports as soon as all of them listen."""
    metrics = Metrics()
    tls = None
    if settings.certificate is not None and settings.key is not None:
        tls = ServingCertificate(settings.certificate, settings.key, clock=clock).context
    async with AsyncExitStack() as stack:
        forwarder = await stack.enter_async_context(Forwarder(settings.limits))
        verified = CachedVerifier(
            parts.verifier, keep=parts.keep, secret=secrets.token_bytes(_SECRET), now=now, clock=clock
        )
        service = SidecarService(
            settings, verified, forwarder, metrics=metrics, now=now, new_id=lambda: secrets.token_hex(8)
        )
        server = ProxyServer(service.handle, settings.address, tls, settings.limits, refused=metrics.refused)
        await server.start()
        stack.push_async_callback(server.stop)
        metrics.watch(lambda: service.under_way, lambda: server.turned_away)
        health = None
        if settings.health is not None:
            listener = HealthServer(settings.health, {"verifiers": parts.trouble}, metrics)
            await listener.start()
            stack.push_async_callback(listener.stop)
            health = listener.port
        _log.info("forwarding from port %d to %s, health on %s", server.port, settings.upstream, health or "none")
        started(Ports(proxy=server.port, health=health))
        async with asyncio.TaskGroup() as group:
            for follow in parts.followers:
                group.create_task(_run(follow))
            group.create_task(asyncio.Event().wait())


async def _run(follow: Callable[[], Awaitable[None]]) -> None:
    await follow()
