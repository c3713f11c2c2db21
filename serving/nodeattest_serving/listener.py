"""HTTPS for strangers: bounded in connections, in time and in bytes before a request is looked at.

Promises: at most so many connections, in all and of one client, counted before the handshake; where all are taken, a
newcomer gets the place of whoever holds most. A connection ends after one answer, or where ``idle_seconds`` is set when
no further request comes in that time; after ``connection_seconds``; and after some 32 KiB and the body that is allowed
for one request, whatever it sends. aiohttp refuses every ambiguous framing; no forwarded address is believed.
Leaves to others: what is answered.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_kube.buckets import Buckets
from nodeattest_serving.connection import Connection, HttpServer, response
from nodeattest_serving.door import Door, client_of
from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.settings import Address, ConnectionLimits

__all__ = ["Handler", "Listener", "client_of"]

_SHUTDOWN: Final = 3.0
"""Seconds for requests that are being answered when we stop."""
_MOST_HEAD: Final = 32 * 1024
"""Bytes of a request but for its body: a line and a dozen headers, one of 4 KiB; more only costs memory."""

_log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest, str], Awaitable[Reply]]
"""A request and who sent it (``client_of``) to the answer."""


class Listener:
    """One address with one handler."""

    def __init__(
        self,
        handler: Handler,
        address: Address,
        tls: ssl.SSLContext | None,
        limits: ConnectionLimits,
        *,
        most_body: int = 0,
        arrivals: Buckets | None = None,
    ) -> None:
        """``most_body``: bytes of the longest body that the handler takes. ``tls``, ``arrivals``: see ``Door``."""
        self._handler = handler
        self._limits = limits
        self._most_bytes = _MOST_HEAD + most_body
        self._http: HttpServer | None = None
        self._door = Door(self._connection, address, tls, limits, arrivals=arrivals)

    @property
    def port(self) -> int:
        """Where it listens; the chosen one where 0 was asked for."""
        return self._door.port

    @property
    def turned_away(self) -> int:
        """Connections that were closed because there were too many, for metrics."""
        return self._door.turned_away

    async def start(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        self._http = HttpServer(
            self._answer  # pyright: ignore[reportArgumentType] - a response is what aiohttp sends, stream or not
        )
        self._http.most_bytes = self._most_bytes
        self._http.limits = self._limits
        self._http.ended = self._door.ended
        await self._door.open()

    async def stop(self) -> None:
        """Stop listening, let requests end, close every connection."""
        if self._http is None:
            return
        self._door.close()
        self._http.pre_shutdown()
        await self._http.shutdown(_SHUTDOWN)
        self._http = None

    def _connection(self) -> asyncio.Protocol:
        assert self._http is not None  # noqa: S101 - for the type checker: there is a server before there are connections
        return self._http()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; a bug of ours is a 500, and in the log."""
        connection = request.protocol
        assert isinstance(connection, Connection)  # noqa: S101 - for the type checker: ``HttpServer`` makes no other
        transport = request.transport
        client = client_of(transport.get_extra_info("peername") if transport is not None else None)
        connection.asked()
        try:
            reply = await self._handler(request, client)
        except Exception:  # noqa: BLE001 - the worker's edge
            _log.exception("answering a request failed")
            reply = refusal(HTTPStatus.INTERNAL_SERVER_ERROR)
        return response(reply, last=not connection.answered())
