"""Runs an issuer server: key sources, listeners, and an orderly stop.

Promises: whatever was started is stopped when ``run`` ends, however it ends. Leaves signals to the caller, who cancels.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from nodeattest_identity.serve.clusters import Clusters
from nodeattest_identity.serve.metrics import Metrics
from nodeattest_identity.serve.service import IssuerPaths, IssuerService, RouteConflictError, RouteTable
from nodeattest_identity.serve.settings import ApiServerSource, FileSource, KubeconfigSecretsSource, ServeSettings
from nodeattest_identity.serve.sources import KeyFileReader, PollConfig, Poller, read_api_server
from nodeattest_kube.client import ApiClient
from nodeattest_serving.bounded_server import SettingsError
from nodeattest_serving.health import HealthServer
from nodeattest_serving.listener import Listener
from nodeattest_serving.tls import ServingCertificate

_FILE_PERIOD: Final = 2.0
"""Seconds between two checks of key files, at most: a check costs microseconds."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports that the server listens on; None: not enabled."""

    documents: int
    health: int | None


class _Updater(Protocol):
    """Keeps the routes up to date."""

    async def run(self) -> None:
        """Run until cancelled."""
        ...

    def unready_reason(self) -> str | None:
        """Why nothing can be served yet; None if it can."""
        ...


async def run(settings: ServeSettings, connect: Callable[[], ApiClient], *, started: Callable[[Ports], None]) -> None:
    """Serve until cancelled; raises ``SettingsError``.

    ``connect`` makes the client of the one cluster, or of the management cluster, if the settings need one.
    ``started`` gets the ports as soon as all listen.
    """
    routes = RouteTable(max_age=settings.max_age, secure=settings.certificate is not None)
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        updater = await _make_updater(settings, connect, stack, routes, metrics)
        certificate = settings.certificate
        tls = None if certificate is None else ServingCertificate(certificate.certificate, certificate.key)
        service = IssuerService(routes, metrics)
        context = None if tls is None else tls.context
        listener = Listener(service.handle, settings.address, context, settings.limits)
        await listener.start()
        stack.push_async_callback(listener.stop)
        metrics.watch_turned_away(lambda: listener.turned_away)
        health = None
        if settings.health is not None:
            health = HealthServer(settings.health, {"documents": updater.unready_reason}, metrics)
            await health.start()
            stack.push_async_callback(health.stop)
        ports = Ports(documents=listener.port, health=None if health is None else health.port)
        _log.info("serving issuers' documents on port %d, health on %s", ports.documents, ports.health or "none")
        started(ports)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(updater.run())


async def _make_updater(
    settings: ServeSettings,
    connect: Callable[[], ApiClient],
    stack: AsyncExitStack,
    routes: RouteTable,
    metrics: Metrics,
) -> _Updater:
    match settings.source:
        case FileSource(issuers=issuers, files=files):
            _reserve(routes, issuers)
            config = PollConfig(period=min(_FILE_PERIOD, settings.period), max_stale=None)
            poller = Poller(issuers, KeyFileReader(files).read, routes=routes, metrics=metrics, config=config)
            if not await poller.poll():
                raise SettingsError(f"--service-account-key-file: {poller.last_error}")
            return _Single(poller)
        case ApiServerSource(issuers=issuers):
            _reserve(routes, issuers)
            client = await stack.enter_async_context(connect())
            read = partial(read_api_server, client, issuers[0].issuer)
            return _Single(Poller(issuers, read, routes=routes, metrics=metrics, config=_config(settings)))
        case KubeconfigSecretsSource() as source:
            client = await stack.enter_async_context(connect())
            return Clusters(client, source, routes=routes, metrics=metrics, config=_config(settings))


def _config(settings: ServeSettings) -> PollConfig:
    return PollConfig(period=settings.period, max_stale=settings.max_stale)


def _reserve(routes: RouteTable, issuers: Sequence[IssuerPaths]) -> None:
    try:
        for paths in issuers:
            routes.open(paths)
    except RouteConflictError as error:
        raise SettingsError(f"--service-account-issuer: {error}; run a server for each") from None


class _Single:
    """An updater with one source."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller

    async def run(self) -> None:
        """Poll until cancelled."""
        await self._poller.run()

    def unready_reason(self) -> str | None:
        """Why there is nothing to serve; None if there is."""
        return None if self._poller.has_documents else self._poller.last_error or "the keys were not read yet"
