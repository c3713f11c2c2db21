"""Runs a sidecar: verifier, forwarder and listeners."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_identity.addon.sidecar.caller import Verifier
from nodeattest_identity.addon.sidecar.service import Metrics, SidecarService, SidecarSettings
from nodeattest_identity.addon.sidecar.verifiers import CachedVerifier
from nodeattest_identity.proxy.forward import Forwarder
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_serving.health import HealthServer
from nodeattest_serving.program import Ports, run_server
from nodeattest_serving.tls import ServingCertificate

REVIEW_CACHE_SECONDS: Final = 10.0
"""Seconds that a TokenReview is cached, as in kube-apiserver: a revoked token stays valid for that long."""
JWT_CACHE_SECONDS: Final = 300.0
"""Seconds that a verified JWT is cached, if it lasts: a revoked key is noticed within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSetup:
    """The verifier, and the tasks that it needs."""

    verifier: Verifier
    audiences: Callable[[], frozenset[str]]
    """Returns the audiences that are ours now."""
    keep: float
    """Seconds that an answer of the verifier is cached."""
    unready_reason: Callable[[], str | None]
    """Returns why no token can be verified now; None if they can."""
    tasks: tuple[Callable[[], Awaitable[None]], ...] = ()


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
    async with Forwarder(settings.limits) as forwarder:
        verified = CachedVerifier(
            setup.verifier, setup.audiences, keep=setup.keep, secret=secrets.token_bytes(32), now=now, clock=clock
        )
        service = SidecarService(settings, verified, forwarder, metrics=metrics, now=now, clock=clock)
        server = ProxyServer(service.handle, settings.address, tls, settings.limits, refused=metrics.refused)
        metrics.open.set_function(lambda: service.in_flight)
        metrics.turned_away.set_function(lambda: server.turned_away)
        health = None
        if settings.health is not None:
            health = HealthServer(settings.health, {"verifiers": setup.unready_reason}, metrics)
        await run_server(server, health, setup.tasks, started)
