"""Runs a discovery front: informers and listeners."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from nodeattest_discovery.front.service import (
    ClusterCache,
    DiscoveryService,
    FrontSettings,
    Metrics,
    TokenReviewService,
)
from nodeattest_kube.client import ApiClient
from nodeattest_serving import program
from nodeattest_serving.program import HealthServer, Listener, run_server
from nodeattest_serving.tls import ServingCertificate

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports(program.Ports):
    """Ports that a front listens on."""

    webhook: int | None
    """None: not enabled."""


async def run(
    settings: FrontSettings,
    client: ApiClient,
    *,
    started: Callable[[Ports], None],
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serve until cancelled; raises ``SettingsError``. ``started`` is told the ports as soon as all of them listen."""
    view = ClusterCache(client, max_stale=settings.max_stale, clock=clock)
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(client)
        limits = settings.limits
        service = DiscoveryService(
            view, limits=limits, audience=settings.audience, metrics=metrics, now=now, clock=clock
        )
        tls = ServingCertificate(settings.certificate, settings.key, clock=clock)
        front = Listener(service.handle, settings.address, tls.context, limits)
        front.on_reject = metrics.turned_away.inc
        webhook = None
        if settings.webhook is not None:
            reviews = TokenReviewService(view, audience=settings.audience, metrics=metrics, now=now)
            tls = ServingCertificate(settings.certificate, settings.key, settings.webhook.client_ca, clock=clock)
            webhook = Listener(reviews.handle, settings.webhook.address, tls.context, limits)
            await webhook.start()
            stack.push_async_callback(webhook.stop)
            _log.info("reviewing tokens on port %d", webhook.port)
        health = None
        if settings.health is not None:
            health = HealthServer(settings.health, {"informers": view.unready_reason}, metrics)

        def report(ports: program.Ports) -> None:
            started(Ports(main=ports.main, health=ports.health, webhook=None if webhook is None else webhook.port))

        await run_server(front, health, (view.run,), report)
