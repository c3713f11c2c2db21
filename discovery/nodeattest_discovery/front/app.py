"""Runs a discovery front: informers and listeners.

Every look-up is answered from memory. While the API server is away the last state counts for a bounded time;
expirations are checked by our own clock meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_discovery import clusterinfo, informers, secret
from nodeattest_discovery.front.service import (
    DiscoveryService,
    FrontLimits,
    Metrics,
)
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject
from nodeattest_serving.bounded_server import BindAddress, SettingsError
from nodeattest_serving.program import HealthServer, Listener, Ports, run_server
from nodeattest_serving.tls import ServingCertificate

_MAX_TOKENS: Final = 20_000
_MAX_BYTES: Final = 64 << 20
"""Of tokens in memory."""

_MIN_STALE: Final = 120.0
"""Seconds; a quiet API server is heard of once a minute (watch bookmarks)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSettings:
    """All settings."""

    address: BindAddress
    certificate: Path
    """The serving certificate and its chain; read again when the file changes."""
    key: Path
    audience: str | None = None
    """The cluster's identifier, where it has one: a JWT that names another is refused."""
    max_stale: float = 300.0
    """Seconds that what was read last is answered with while the API server is away."""
    health: BindAddress | None = None
    limits: FrontLimits = field(default_factory=FrontLimits)

    def __post_init__(self) -> None:
        if self.max_stale < _MIN_STALE:
            raise SettingsError(f"max-stale: expected at least {_MIN_STALE:.0f} s, got {self.max_stale:g}")


class ClusterCache:
    """The informers of one workload cluster."""

    def __init__(self, client: ApiClient, *, max_stale: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``max_stale``: seconds without contact to the API server, after which nothing is answered."""
        self._max_stale = max_stale
        self._clock = clock
        self._tokens = informers.watch_tokens(
            client, _ignore, data_keys=None, max_objects=_MAX_TOKENS, max_bytes=_MAX_BYTES, clock=clock
        )
        self._info = informers.watch_cluster_info(client, _ignore, clock=clock)

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tokens.run())
            group.create_task(self._info.run())

    def token(self, token_id: str) -> JsonObject | None:
        """Return the Secret of a token."""
        return self._tokens.get(f"{secret.NAMESPACE}/{secret.secret_name(token_id)}")

    def cluster_info(self) -> JsonObject | None:
        """Return the ConfigMap."""
        return self._info.get(f"{clusterinfo.NAMESPACE}/{clusterinfo.NAME}")

    def unready_reason(self) -> str | None:
        """Why no request can be answered now; None if it can."""
        for what, reflector in (("tokens", self._tokens), ("cluster-info", self._info)):
            if not reflector.synced:
                return f"the {what} of the cluster were not read yet"
            if self._clock() - reflector.last_contact > self._max_stale:
                return f"no contact to the API server about {what} for more than {self._max_stale:.0f} s"
        return None


def _ignore(_key: str, _item: JsonObject | None) -> None:
    """Do nothing: lookups read the informers."""


async def run(
    settings: FrontSettings,
    client: ApiClient,
    *,
    started: Callable[[Ports], None],
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serve until canceled; raises ``SettingsError``. ``started`` gets the ports as soon as all of them listen."""
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
        health = None
        if settings.health is not None:
            health = HealthServer(settings.health, {"informers": view.unready_reason}, metrics)
        await run_server(front, health, (view.run,), started)
