"""Runs a discovery front: informers, listeners, and an orderly stop.

Promises: whatever was started is stopped when ``run`` ends, however it ends; requests in flight are finished. Leaves
signals to the caller, who cancels.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from nodeattest_discovery.front.cluster_cache import ClusterCache
from nodeattest_discovery.front.service import DiscoveryService, FrontSettings, Metrics
from nodeattest_discovery.front.tokenreview import TokenReviewService
from nodeattest_kube.client import ApiClient
from nodeattest_kube.fair_queue import RateLimiter
from nodeattest_serving.health import HealthServer
from nodeattest_serving.listener import Listener
from nodeattest_serving.tls import ServingCertificate

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a front listens; None where it does not."""

    front: int
    webhook: int | None
    health: int | None


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
        service = DiscoveryService(
            view, limits=settings.limits, audience=settings.audience, metrics=metrics, now=now, clock=clock
        )
        tls = ServingCertificate(settings.certificate, settings.key, clock=clock)
        limits = settings.limits
        # Twice what is answered: a client that is a little over the limit learns it, and when to come again.
        arrivals = RateLimiter(burst=2 * limits.client_burst, per_second=2 * limits.client_rate, clock=clock)
        listener = Listener(service.handle, settings.address, tls.context, limits, arrivals=arrivals)
        front = await _listen(stack, listener)
        metrics.watch_turned_away(lambda: front.turned_away)
        webhook = None
        if settings.webhook is not None:
            reviews = TokenReviewService(view, audience=settings.audience, metrics=metrics, now=now)
            tls = ServingCertificate(settings.certificate, settings.key, settings.webhook.client_ca, clock=clock)
            listener = Listener(reviews.handle, settings.webhook.address, tls.context, settings.limits)
            webhook = (await _listen(stack, listener)).port
        health = None
        if settings.health is not None:
            server = HealthServer(settings.health, {"informers": view.unready_reason}, metrics)
            await server.start()
            stack.push_async_callback(server.stop)
            health = server.port
        ports = Ports(front=front.port, webhook=webhook, health=health)
        _log.info(
            "serving discovery on port %d, TokenReviews on %s, health on %s",
            front.port,
            webhook or "none",
            health or "none",
        )
        started(ports)
        async with asyncio.TaskGroup() as group:
            group.create_task(view.run())


async def _listen(stack: AsyncExitStack, listener: Listener) -> Listener:
    await listener.start()
    stack.push_async_callback(listener.stop)
    return listener
