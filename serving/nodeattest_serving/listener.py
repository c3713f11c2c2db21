"""An HTTPS server for unauthenticated clients: bounded in connections, time and bytes before a request is parsed.

The number of connections is limited in total and per client, before the handshake (``bounded_server``). A connection
ends after one answer, or, with ``idle_seconds``, when no further request comes in that time; after
``connection_seconds``; and after 32 KiB plus the allowed body for one request. aiohttp refuses every ambiguous framing;
forwarded addresses are ignored.
Leaves to others: the answers (``Handler``).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from aiohttp import web

from nodeattest_kube.addresses import IPNetwork
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_serving.bounded_server import BoundedServer, UnauthenticatedLimits, client_of
from nodeattest_serving.connection import BoundedConnection, CountedServer, HttpServer, requester, send
from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.settings import BindAddress, ConnectionLimits

__all__ = ["Handler", "HttpListener", "Listener", "client_of"]

_SHUTDOWN: Final = 3.0
"""Seconds for requests in progress at shutdown."""
_MOST_HEAD: Final = 32 * 1024
"""Bytes of a request without its body: a line and a dozen headers, one of 4 KiB."""

_log = logging.getLogger(__name__)

S = TypeVar("S", bound=CountedServer)

Handler = Callable[[web.BaseRequest, str], Awaitable[Reply]]
"""Answers a request of a client (``client_of``)."""


class HttpListener(Generic[S]):
    """A bounded server on one address, and the HTTP server behind it while it runs."""

    def __init__(
        self,
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ConnectionLimits,
        *,
        arrivals: RateLimiter | None = None,
        unauthenticated: UnauthenticatedLimits | None = None,
        allowed: Collection[IPNetwork] = (),
    ) -> None:
        """``tls`` and what follows ``limits``: see ``BoundedServer``."""
        self._http: S | None = None
        self._server = BoundedServer(
            self._connection,
            address,
            tls,
            limits,
            arrivals=arrivals,
            unauthenticated=unauthenticated,
            allowed=allowed,
        )

    @property
    def port(self) -> int:
        """Where it listens; the chosen one where 0 was asked for."""
        return self._server.port

    @property
    def turned_away(self) -> int:
        """Connections that were closed because there were too many, for metrics."""
        return self._server.turned_away

    async def stop(self) -> None:
        """Stop listening, let requests end, close every connection."""
        if self._http is None:
            return
        self._server.close()
        self._http.pre_shutdown()
        await self._http.shutdown(_SHUTDOWN)
        self._http = None

    async def _open(self, http: S) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        http.ended = self._server.ended
        self._http = http
        await self._server.open()

    def _connection(self) -> asyncio.Protocol:
        assert self._http is not None  # noqa: S101 - for the type checker: there is a server before there are connections
        return self._http()


class Listener(HttpListener[HttpServer]):
    """A server on one address with one handler."""

    def __init__(
        self,
        handler: Handler,
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ConnectionLimits,
        *,
        most_body: int = 0,
        arrivals: RateLimiter | None = None,
        unauthenticated: UnauthenticatedLimits | None = None,
        allowed: Collection[IPNetwork] = (),
    ) -> None:
        """``most_body``: bytes of the longest request body. Others: see ``BoundedServer``."""
        super().__init__(address, tls, limits, arrivals=arrivals, unauthenticated=unauthenticated, allowed=allowed)
        self._handler = handler
        self._limits = limits
        self._most_bytes = _MOST_HEAD + most_body

    async def start(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        http = HttpServer(self._answer)
        http.most_bytes = self._most_bytes
        http.limits = self._limits
        await self._open(http)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; an exception is logged and answered with 500."""
        connection = request.protocol
        assert isinstance(connection, BoundedConnection)  # noqa: S101 - for the type checker: ``HttpServer`` makes no other
        connection.request_started()
        try:
            reply = await self._handler(request, requester(request))
        except Exception:  # noqa: BLE001 - one request's bug must not end the server
            _log.exception("answering a request failed")
            reply = refusal(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            return await send(request, reply, last=not connection.request_finished())
        finally:
            reply.written()
