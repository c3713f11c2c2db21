"""HTTPS for strangers: bounded in connections, in time and in bytes before a request is looked at.

Promises: at most so many connections, in all and of one client, counted before the handshake; where all are taken, a
newcomer gets the place of whoever holds most. A connection ends after one answer, after ``connection_seconds``, and
after some 32 KiB and the body that is allowed, whatever it sends; aiohttp refuses every ambiguous framing; no forwarded
address is believed.
Leaves to others: what is answered.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import ssl
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, cast

from aiohttp import web

from nodeattest_kube.buckets import Buckets
from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.settings import Address, ConnectionLimits, SettingsError

__all__ = ["Handler", "Listener", "client_of"]

_HANDSHAKE: Final = 5.0
"""Seconds for a TLS handshake."""
_SHUTDOWN: Final = 3.0
"""Seconds for requests that are being answered when we stop."""
_MAX_LINE: Final = 2048
"""Bytes of a request line; ours has 80."""
_MAX_FIELD: Final = 8190
_MAX_FIELDS: Final = 64
_MOST_HEAD: Final = 32 * 1024
"""Bytes of a request but for its body: a line and a dozen headers, one of 4 KiB; more only costs memory."""
_BACKLOG: Final = 128
_IPV6_CLIENT: Final = 64
"""Bits of an IPv6 address that a client cannot choose (RFC 6177)."""

_log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest, str], Awaitable[Reply]]
"""A request and who sent it (``client_of``) to the answer."""


class _Connection(web.RequestHandler):
    """aiohttp's connection, which ends when more came than any request of ours has.

    aiohttp keeps all that came until the connection ends, whatever its own limits refused of it.
    """

    room: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; bytes may have come before, with the end of the handshake."""
        super().connection_made(transport)
        if self.room < 0 and self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take some bytes in."""
        self.room -= len(data)
        if self.room >= 0:
            super().data_received(data)
        elif self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse what is no HTTP in our own words; aiohttp's quote the request, and tell our versions."""
        del request, exc, message
        bad = status < HTTPStatus.INTERNAL_SERVER_ERROR
        return _response(refusal(HTTPStatus.BAD_REQUEST if bad else HTTPStatus.INTERNAL_SERVER_ERROR))


class _Server(web.Server):
    """aiohttp's server, which tells when a connection has ended."""

    ended: Callable[[web.RequestHandler], None]
    most_bytes: int

    def __call__(self) -> web.RequestHandler:
        """Make a connection's protocol; aiohttp's own way does without limits that it does not know."""
        quiet = logging.Logger("http", logging.CRITICAL + 1)  # noqa: LOG001 - aiohttp's own lines quote requests
        connection = _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=quiet,
            logger=quiet,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_FIELD,
            max_headers=_MAX_FIELDS,
            lingering_time=0.0,
        )
        connection.room = self.most_bytes
        return connection

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Note the end of a connection."""
        super().connection_lost(handler, exc)
        self.ended(handler)


class _Arrival(asyncio.Protocol):
    """A connection before its handshake."""

    def __init__(self, arrived: Callable[[asyncio.Transport], None]) -> None:
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the connection over."""
        self._arrived(cast("asyncio.Transport", transport))


class Listener:
    """One address with one handler."""

    def __init__(
        self,
        handler: Handler,
        address: Address,
        tls: ssl.SSLContext,
        limits: ConnectionLimits,
        *,
        most_body: int = 0,
        arrivals: Buckets | None = None,
    ) -> None:
        """``most_body``: bytes of the longest body that the handler takes.

        ``arrivals``: connections of a client in time. A handshake costs far more than closing a connection does, so
        whoever is far over his limit gets none.
        """
        self.port = 0
        """Where it listens; the chosen one where 0 was asked for."""
        self.turned_away = 0
        """Connections that were closed because there were too many, for metrics."""
        self._handler = handler
        self._address = address
        self._tls = tls
        self._limits = limits
        self._most_bytes = _MOST_HEAD + most_body
        self._arrivals = arrivals
        self._clients: dict[str, dict[asyncio.Transport, None]] = {}
        """Connections of each client that has any, the oldest first."""
        self._timers: dict[asyncio.BaseProtocol, tuple[str, asyncio.Transport, asyncio.TimerHandle]] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._http: _Server | None = None
        self._listening: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        self._http = _Server(
            self._answer  # pyright: ignore[reportArgumentType] - a response is what aiohttp sends, stream or not
        )
        self._http.most_bytes = self._most_bytes
        self._http.ended = self._ended
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(
                lambda: _Arrival(self._arrived), self._address.host or None, self._address.port, backlog=_BACKLOG
            )
        except OSError as error:
            why = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror
            raise SettingsError(f"expected an address to listen on, got {self._address}: {why}") from None
        self.port = int(self._listening.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, let requests end, close every connection."""
        if self._listening is None or self._http is None:
            return
        self._listening.close()
        for task in list(self._handshakes):
            task.cancel()
        self._http.pre_shutdown()
        await self._http.shutdown(_SHUTDOWN)
        self._listening = None

    def _arrived(self, transport: asyncio.Transport) -> None:
        """Take a connection in, or turn it away."""
        client = client_of(transport.get_extra_info("peername"))
        if not self._has_place(client):
            self.turned_away += 1
            transport.abort()
            return
        self._clients.setdefault(client, {})[transport] = None
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._shake_hands(transport, client))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def _has_place(self, client: str) -> bool:
        """Tell whether a client may have one more connection; where all are taken, at the cost of whoever has most.

        So a few clients that hold all they may do not keep others out: they lose their oldest.
        """
        own = len(self._clients.get(client, ()))
        if own >= self._limits.connections_of_client:
            return False
        if self._arrivals is not None and not self._arrivals.take(client):
            return False
        if sum(map(len, self._clients.values())) < self._limits.connections:
            return True
        greediest = max(self._clients.values(), key=len)
        if len(greediest) <= own:
            return False
        self.turned_away += 1
        oldest = next(iter(greediest))
        del greediest[oldest]
        oldest.abort()
        return True

    async def _shake_hands(self, transport: asyncio.Transport, client: str) -> None:
        """Put TLS on a connection and HTTP on that; whatever fails ends it."""
        loop = asyncio.get_running_loop()
        assert self._http is not None  # noqa: S101 - for the type checker: there is a server before there are connections
        protocol = self._http()
        try:
            secured = await loop.start_tls(
                transport,
                protocol,
                self._tls,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE,
                ssl_shutdown_timeout=_HANDSHAKE,
            )
        except BaseException as error:
            transport.abort()
            self._leave(client, transport)
            if isinstance(error, OSError):  # ssl.SSLError, a reset and a time limit are OSErrors
                error.__traceback__ = None  # its frames hold TLS's buffers (256 KiB) in a cycle, until gc has time
                return
            raise
        if secured is None:
            self._leave(client, transport)
            return
        timer = loop.call_later(self._limits.connection_seconds, secured.abort)
        self._timers[protocol] = client, transport, timer
        protocol.connection_made(secured)

    def _ended(self, protocol: web.RequestHandler) -> None:
        held = self._timers.pop(protocol, None)
        if held is not None:
            client, transport, timer = held
            timer.cancel()
            self._leave(client, transport)

    def _leave(self, client: str, transport: asyncio.Transport) -> None:
        held = self._clients.get(client, {})
        held.pop(transport, None)
        if not held:
            self._clients.pop(client, None)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request and end the connection; a bug of ours is a 500, and in the log."""
        transport = request.transport
        client = client_of(transport.get_extra_info("peername") if transport is not None else None)
        try:
            reply = await self._handler(request, client)
        except Exception:  # noqa: BLE001 - the worker's edge
            _log.exception("answering a request failed")
            reply = refusal(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _response(reply)


def _response(reply: Reply) -> web.Response:
    response = web.Response(status=reply.status, body=reply.body, headers=reply.headers)
    response.content_type = "application/json"
    response.headers["Cache-Control"] = "no-cache, private"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Server"] = "nodeattest"
    response.force_close()
    return response


def client_of(peer: object) -> str:
    """Name a client by the address that its connection comes from; an IPv6 client by its network."""
    host = cast("tuple[object, ...]", peer)[0] if isinstance(peer, tuple) and peer else ""
    try:
        address = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_CLIENT), strict=False))
    return str(address)
