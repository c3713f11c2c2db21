"""/healthz, /readyz and /metrics of a program, over plain HTTP on an address of their own: nothing there is secret.

Promises: connections that say nothing keep no probe out, and use up no file descriptors: over ``_CONNECTIONS`` the
oldest ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from aiohttp import web

from nodeattest_serving.settings import Address, SettingsError

__all__ = ["Health", "Metrics"]

_KEEPALIVE: Final = 15.0
"""Seconds an idle connection is kept; probes come every 10."""
_CONNECTIONS: Final = 64
"""At once; probes and Prometheus have one or two."""


class Metrics(Protocol):
    """What can be scraped."""

    def render(self) -> bytes:
        """Write the exposition."""
        ...


class _Server(web.Server):
    """aiohttp's server, bounded in connections."""

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Take a connection in, at the cost of the oldest if need be."""
        super().connection_made(handler, transport)
        held = [each.transport for each in self.connections if each.transport and not each.transport.is_closing()]
        if len(held) > _CONNECTIONS:
            held[0].abort()


class Health:
    """Ready means that ``trouble`` knows of none."""

    def __init__(self, address: Address, metrics: Metrics, trouble: Callable[[], str | None]) -> None:
        self.port = 0
        self._address = address
        self._metrics = metrics
        self._trouble = trouble
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        self._runner = web.ServerRunner(_Server(self._answer, access_log=None, keepalive_timeout=_KEEPALIVE))
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._address.host or None, self._address.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise SettingsError(f"expected an address to listen on, got {self._address}: {error.strerror}") from None
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.path:
            case "/healthz":
                return web.Response(text="ok")
            case "/readyz":
                trouble = self._trouble()
                status = HTTPStatus.OK if trouble is None else HTTPStatus.INTERNAL_SERVER_ERROR
                return web.Response(status=status, text=trouble or "ok")
            case "/metrics":
                return web.Response(body=self._metrics.render(), content_type="text/plain")
            case _:
                return web.Response(status=HTTPStatus.NOT_FOUND, text="not found")
