"""Serves the metrics over HTTPS to whom the API server allows it (``metrics_auth``).

Promises: nothing of the metrics leaves without a permission; the certificate is a folder's, read again when it changes,
or self-signed, made at the start and anew before it ends; its key touches no disk.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from nodeattest_controller.controllers.bootstrap_config.certificates import Lifetimes, advance
from nodeattest_controller.controllers.bootstrap_config.tls import DynamicCertificate
from nodeattest_controller.metrics_auth import METRICS_PATH, ScrapeAuthorizer, ScrapeRefusedError
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient
from nodeattest_kube.periodic import call_every
from nodeattest_serving.health import MetricsSource
from nodeattest_serving.listener import Listener
from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.settings import BindAddress, ConnectionLimits
from nodeattest_serving.tls import ServingCertificate

__all__ = ["SecureMetricsServer"]

_LIMITS: Final = ConnectionLimits(
    connections=64,
    connections_of_client=32,
    replaces_oldest=True,
    connection_seconds=600.0,
    idle_seconds=75.0,
)
"""Prometheus keeps its connection between two scrapes, 60 seconds by default at most."""
_EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"
_RENEWAL_CHECK: Final = 3600.0
"""Seconds."""
_SECRET: Final = 32


class SecureMetricsServer:
    """One address."""

    def __init__(self, settings: Settings, address: BindAddress, metrics: MetricsSource, client: ApiClient) -> None:
        """Take a client that may send whether this replica leads or not; raises ``SettingsError`` for its files."""
        self._metrics = metrics
        self._authorizer = ScrapeAuthorizer(
            client,
            audiences=settings.metrics_audiences,
            secret=secrets.token_bytes(_SECRET),
            clock=time.monotonic,
        )
        self._own = None if settings.metrics_cert_dir is not None else _SelfSigned(settings.namespace)
        self._renewal: asyncio.Task[None] | None = None
        self._listener = Listener(self._answer, address, _context(settings, self._own), _LIMITS)

    @property
    def port(self) -> int:
        """Where it listens; the chosen one where 0 was asked for."""
        return self._listener.port

    async def start(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        await self._listener.start()
        if self._own is not None:
            self._renewal = asyncio.create_task(call_every(_RENEWAL_CHECK, self._own.renew))

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._renewal is not None:
            self._renewal.cancel()
        await self._listener.stop()
        await self._authorizer.aclose()

    async def _answer(self, request: web.BaseRequest, client: str) -> Reply:
        if request.path != METRICS_PATH:
            return refusal(HTTPStatus.NOT_FOUND)
        if request.method != "GET":
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            await self._authorizer.check(request.raw_headers, client)
        except ScrapeRefusedError as refused:
            headers = {"Content-Type": "text/plain; charset=utf-8", **refused.headers}
            return Reply(status=refused.status, body=f"{refused}\n".encode(), headers=headers)
        return Reply(status=HTTPStatus.OK, body=self._metrics.render(), headers={"Content-Type": _EXPOSITION})


class _SelfSigned:
    """A certificate that nobody can verify, of a CA that is told nobody: it keeps tokens from those who only listen."""

    def __init__(self, namespace: str) -> None:
        self.certificate: Final = DynamicCertificate()
        self._names = (f"node-attestation-controller-metrics.{namespace}.svc", "localhost")
        self._held = None
        self.renew()

    def renew(self) -> None:
        """Make it anew where it is due."""
        now = datetime.now(UTC)
        while (
            made := advance(self._held, now=now, names=self._names, lifetimes=Lifetimes(), announced=True)
        ) is not None:
            self._held = made
        if self._held is not None:
            serving = self._held.serving
            self.certificate.take(serving.pem, serving.key_pem)


def _context(settings: Settings, own: _SelfSigned | None) -> ssl.SSLContext:
    if own is not None:
        return own.certificate.context
    folder = Path(settings.metrics_cert_dir or "")
    return ServingCertificate(folder / "tls.crt", folder / "tls.key").context
