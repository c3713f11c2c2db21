"""HTTPS for strangers: bounded in connections, in time and in bytes before a request is looked at.

Promises: at most so many connections, in all and of one client, counted before the handshake; where all are taken, a
newcomer gets the place of whoever holds most. A connection ends after one answer, or where ``idle_seconds`` is set when
no further request comes in that time; after ``connection_seconds``; and after some 32 KiB and the body that is allowed
for one request, whatever it sends. aiohttp refuses every ambiguous framing; no forwarded address is believed.
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
from nodeattest_serving.connection import Connection, HttpServer, response
from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.settings import Address, ConnectionLimits, SettingsError

__all__ = ["Handler", "Listener", "client_of"]

_HANDSHAKE: Final = 5.0
"""Seconds for a TLS handshake."""
_SHUTDOWN: Final = 3.0
"""Seconds for requests that are being answered when we stop."""
_MOST_HEAD: Final = 32 * 1024
"""Bytes of a request but for its body: a line and a dozen headers, one of 4 KiB; more only costs memory."""
_BACKLOG: Final = 128
_IPV6_CLIENT: Final = 64
"""Bits of an IPv6 address that a client cannot choose (RFC 6177)."""

_log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest, str], Awaitable[Reply]]
"""A request and who sent it (``client_of``) to the answer."""


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
        tls: ssl.SSLContext | None,
        limits: ConnectionLimits,
        *,
        most_body: int = 0,
        arrivals: Buckets | None = None,
    ) -> None:
        """``tls``: None for plain HTTP, behind something of ours on the same machine.

        ``most_body``: bytes of the longest body that the handler takes.

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
        self._held: dict[asyncio.BaseProtocol, tuple[str, asyncio.Transport]] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._http: HttpServer | None = None
        self._listening: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        self._http = HttpServer(
            self._answer  # pyright: ignore[reportArgumentType] - a response is what aiohttp sends, stream or not
        )
        self._http.most_bytes = self._most_bytes
        self._http.limits = self._limits
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
        if self._tls is None:
            self._begin_plain(transport, client)
            return
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._shake_hands(transport, client, self._tls))
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

    async def _shake_hands(self, transport: asyncio.Transport, client: str, tls: ssl.SSLContext) -> None:
        """Put TLS on a connection and HTTP on that; whatever fails ends it."""
        loop = asyncio.get_running_loop()
        assert self._http is not None  # noqa: S101 - for the type checker: there is a server before there are connections
        protocol = self._http()
        try:
            secured = await loop.start_tls(
                transport,
                protocol,
                tls,
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
        self._held[protocol] = client, transport
        protocol.connection_made(secured)

    def _begin_plain(self, transport: asyncio.Transport, client: str) -> None:
        assert self._http is not None  # noqa: S101 - as above
        protocol = self._http()
        self._held[protocol] = client, transport
        transport.set_protocol(protocol)
        protocol.connection_made(transport)

    def _ended(self, protocol: web.RequestHandler) -> None:
        held = self._held.pop(protocol, None)
        if held is not None:
            self._leave(*held)

    def _leave(self, client: str, transport: asyncio.Transport) -> None:
        held = self._clients.get(client, {})
        held.pop(transport, None)
        if not held:
            self._clients.pop(client, None)

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
