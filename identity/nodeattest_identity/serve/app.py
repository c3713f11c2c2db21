"""Runs an issuer server: key sources and listeners."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import web

from nodeattest_identity.issuer.documents import MAX_AGE
from nodeattest_identity.serve.clusters import Clusters, KubeconfigSecretsSource
from nodeattest_identity.serve.service import IssuerPaths, Metrics, RouteConflictError, RouteTable
from nodeattest_identity.serve.sources import KeyFileReader, Poller, read_api_server
from nodeattest_kube.client import ApiClient
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits, SettingsError
from nodeattest_serving.http_server import Listener, Reply
from nodeattest_serving.program import HealthServer, Ports, run_server
from nodeattest_serving.tls import ServingCertificate

_FILE_PERIOD: Final = 2.0
"""Seconds between two reads of key files, at most."""
_MAX_AGE: Final = 7 * 24 * 3600
_MIN_STALE: Final = 60.0
_LIMITS: Final = ConnectionLimits(
    connections=512, connections_of_client=256, connection_seconds=600.0, idle_seconds=30.0
)
"""A cache in front opens many connections from few addresses; each costs some 300 KiB with TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysSource:
    """Keys in files, or of one workload cluster, as its API server has them."""

    issuers: tuple[IssuerPaths, ...]
    """Issuers whose tokens these keys verify: the API server's own first, then earlier ones whose tokens still live."""
    files: tuple[Path, ...] = ()
    """Empty: ask the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """All settings."""

    address: BindAddress
    source: KeysSource | KubeconfigSecretsSource
    certificate: Path | None = None
    key: Path | None = None
    """Both, or plain HTTP on a loopback address."""
    health: BindAddress | None = None
    max_age: int = MAX_AGE
    """Seconds that caches may hold a document: a new key must be published so long before it signs."""
    period: float = 60.0
    """Seconds between two reads of an API server."""
    max_stale: float = 24 * 3600.0
    """Seconds that keys of an API server stay served after its last read."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise SettingsError("expected --tls-cert-file and --tls-private-key-file together, got one of them")
        if self.certificate is None and not self.address.is_loopback:
            raise SettingsError(
                f"expected --tls-cert-file and --tls-private-key-file, or a --bind-address that only this machine "
                f"reaches, such as 127.0.0.1:8080 behind a front that ends TLS, got {self.address} alone"
            )
        if not 0 <= self.max_age <= _MAX_AGE:
            raise SettingsError(f"--max-age: expected 0 to {_MAX_AGE} seconds, got {self.max_age}")
        if self.max_stale < max(_MIN_STALE, self.period):
            raise SettingsError(
                f"--max-stale: expected at least --period and {_MIN_STALE:.0f} seconds, got {self.max_stale:g}"
            )


async def run(settings: ServeSettings, connect: Callable[[], ApiClient], *, started: Callable[[Ports], None]) -> None:
    """Serve until cancelled; raises ``SettingsError``.

    ``connect`` makes the client of the one cluster, or of the management cluster, if the settings need one.
    ``started`` gets the ports as soon as all listen.
    """
    routes = RouteTable(max_age=settings.max_age, secure=settings.certificate is not None)
    metrics = Metrics()

    async def handle(request: web.BaseRequest, _client: str) -> Reply:
        reply = routes.answer(request)
        metrics.answers.labels(str(reply.status.value)).inc()
        return reply

    async with AsyncExitStack() as stack:
        updater = await _make_updater(settings, connect, stack, routes, metrics)
        tls = None
        if settings.certificate is not None and settings.key is not None:
            tls = ServingCertificate(settings.certificate, settings.key).context
        listener = Listener(handle, settings.address, tls, _LIMITS)
        metrics.turned_away.set_function(lambda: listener.turned_away)
        health = None
        if settings.health is not None:
            health = HealthServer(settings.health, {"documents": updater.unready_reason}, metrics)
        await run_server(listener, health, (updater.run,), started)


async def _make_updater(
    settings: ServeSettings,
    connect: Callable[[], ApiClient],
    stack: AsyncExitStack,
    routes: RouteTable,
    metrics: Metrics,
) -> Poller | Clusters:
    source, period, max_stale = settings.source, settings.period, settings.max_stale
    if isinstance(source, KubeconfigSecretsSource):
        client = await stack.enter_async_context(connect())
        return Clusters(client, source, routes=routes, metrics=metrics, period=period, max_stale=max_stale)
    try:
        for paths in source.issuers:
            routes.open(paths)
    except RouteConflictError as error:
        raise SettingsError(f"--service-account-issuer: {error}; run a server for each") from None
    if not source.files:
        client = await stack.enter_async_context(connect())
        read = partial(read_api_server, client, source.issuers[0].issuer)
        return Poller(source.issuers, read, routes=routes, metrics=metrics, period=period, max_stale=max_stale)
    reader = KeyFileReader(source.files)
    poller = Poller(source.issuers, reader.read, routes=routes, metrics=metrics, period=min(_FILE_PERIOD, period))
    if not await poller.poll():
        raise SettingsError(f"--service-account-key-file: {poller.last_error}")
    return poller
