"""Serves the metrics over HTTPS to whom the API server allows it (``metrics_auth``).

The certificate is read from a folder, and again when it changes. Without a folder it is self-signed and made at the
start; its key touches no disk.
"""

from __future__ import annotations

import secrets
import ssl
import time
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from nodeattest_controller.metrics_auth import METRICS_PATH, ScrapeAuthorizer, ScrapeRefusedError
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient
from nodeattest_serving.health import MetricsSource
from nodeattest_serving.listener import Listener
from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.settings import BindAddress, ConnectionLimits
from nodeattest_serving.tls import ServingCertificate, self_signed_context

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
        self._listener = Listener(self._answer, address, _context(settings), _LIMITS)

    @property
    def port(self) -> int:
        """Where it listens; the chosen one where 0 was asked for."""
        return self._listener.port

    async def start(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        await self._listener.start()

    async def stop(self) -> None:
        """Stop listening and close every connection."""
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


def _context(settings: Settings) -> ssl.SSLContext:
    if settings.metrics_cert_dir is None:
        return self_signed_context(f"node-attestation-controller-metrics.{settings.namespace}.svc")
    folder = Path(settings.metrics_cert_dir)
    return ServingCertificate(folder / "tls.crt", folder / "tls.key").context
