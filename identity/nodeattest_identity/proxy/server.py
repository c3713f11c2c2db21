"""An HTTP server for proxies: kept connections, streamed responses, WebSockets.

Promises: a header that exceeds its time or size is refused with 408 or 431. aiohttp refuses every ambiguous framing.
Unauthenticated connections, where they can be distinguished, are few and short. Bodies are passed unchanged, also
compressed ones. A client that disconnects cancels its request. A client that does not read its response, ours or a
forwarded one, is closed.
Leaves to others: responses, and limits of connections (``BoundedServer``).
Source: RFC 9112 §2.2, §6.1, §9.6; RFC 6585 §5; companions' raw-socket corpus.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import StreamReader

from nodeattest_identity.proxy.limits import MAX_FIELD, MAX_FIELDS, MAX_HEAD, MAX_LINE, ProxyLimits
from nodeattest_identity.proxy.refusals import STATUS, Refusal, RefusalError, answer, body
from nodeattest_kube.periodic import call_every
from nodeattest_serving.bounded_server import BoundedServer, UnauthenticatedLimits
from nodeattest_serving.connection import CountedServer, quiet_log
from nodeattest_serving.fair_scheduler import ScheduleKey
from nodeattest_serving.listener import HttpListener
from nodeattest_serving.sequential_connection import SequentialConnection
from nodeattest_serving.settings import BindAddress, ConnectionLimits

__all__ = ["ProxyRequestHandler", "ProxyServer", "note_authenticated"]

_LINGER: Final = 1.0
"""Seconds to keep reading after an early response: a reset could overtake the response."""
_VERSIONS: Final = (HttpVersion11, HttpVersion10)
_UNSENT: Final = 64 * 1024
"""Write buffer for a slow client; asyncio's TLS buffers eight times as much."""
_PER_PASS: Final = 16
"""Requests that begin in one pass of the loop: with one, a proxy handles half as many a second."""
_SWEEP: Final = 0.5
"""Seconds between two checks for slow headers and unread responses."""

_log = logging.getLogger(__name__)

ProxyRequestHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
"""Handles a request; raises ``RefusalError``."""


class _FinalResponse(web.Response):
    """The response to invalid HTTP; the connection stays open for a moment, so that no reset overtakes it."""

    transport: asyncio.Transport | None = None

    async def write_eof(self, data: bytes = b"") -> None:
        """End the response, and wait for the client to close."""
        await super().write_eof(data)
        if self.transport is not None:
            _half_close(self.transport)
            await asyncio.sleep(_LINGER)


class _Connection(SequentialConnection):
    """aiohttp's connection with limits for the header's bytes and seconds."""

    refused: Callable[[Refusal], None]
    is_unauthenticated: Callable[[asyncio.BaseTransport], bool]
    accepted_by: BoundedServer
    unauthenticated_since: float | None = None
    """Since when an unauthenticated connection is open; None: authenticated."""
    waiting_since: float | None = None
    """Since when a header is incomplete or awaited; None: complete, or a request before it is unanswered."""
    handling = False
    """Whether the handler has a request; it has its own deadline."""
    _is_callers = False
    """Whether the request that the handler has is that of an authenticated caller."""
    _unread_since: float | None = None
    """Since when data waits for the client to read; None: none, or some was read."""
    _wire: asyncio.Transport | None = None
    """Also set while the connection is closing."""
    _head = 0
    """Bytes of the incomplete header."""
    _last: StreamReader | None = None
    """The body of the last request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker: streams have no others
        self._wire = transport
        transport.set_write_buffer_limits(high=_UNSENT)
        self.waiting_since = asyncio.get_running_loop().time()
        if self.is_unauthenticated(transport):
            self.unauthenticated_since = self.waiting_since
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self._wire = None
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Note that the client has read."""
        self._unread_since = None
        super().resume_writing()

    def keep(self, owner: str) -> None:
        """Note that the request that the handler has is that of an authenticated caller."""
        self._is_callers = True
        self.accepted_by.keep(self, owner)

    def handled(self) -> None:
        """Note that the handler is done."""
        self.accepted_by.request_ended(self, authenticated=self._is_callers)
        self.handling, self._is_callers, self._unread_since = False, False, None

    def sweep(self, now: float, limits: ProxyLimits) -> None:
        """Close what takes too long: a header, an unauthenticated connection, or a client that does not read."""
        if self._wire is not None and _is_before(self.unauthenticated_since, now - limits.unauthenticated_seconds):
            self._wire.abort()
            return
        if self._has_request:
            self.waiting_since = None
        elif self._head and self.waiting_since is None:
            self.waiting_since = now
        elif _is_before(self.waiting_since, now - limits.header_seconds):
            self.end(Refusal.REQUEST_TOO_SLOW)
        if self._wire is None or not self._wire.get_write_buffer_size():
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        elif self._unread_since < now - (limits.forwarded_unread_seconds if self.handling else limits.unread_seconds):
            self._wire.abort()

    @property
    def _has_request(self) -> bool:
        """Whether a request is complete in its header and not answered yet; it has its own deadlines."""
        return self._waiter is None or self._waiter.done()

    @property
    def _in_body(self) -> bool:
        """Whether further bytes are of a request's body, or of a WebSocket."""
        if self._upgraded:  # pyright: ignore[reportUnknownMemberType] - aiohttp's own, a bool
            return True
        return self._last is not None and not self._last.is_eof()

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a header.

        Bytes of a body are distinguished before they are parsed: afterwards its last piece looks like a next header.
        What follows a body within that piece is counted with the next one.
        """
        if self._close or self._force_close:
            super().data_received(data)  # which takes nothing more
            return
        before, in_body = self._request_count, self._in_body
        super().data_received(data)
        if self._request_count != before:
            if self._messages:
                self._last = self._messages[-1][1]
            self._head, self.waiting_since = 0, None
        elif data and not in_body:
            self._head += len(data)
            if self.waiting_since is None and not self._has_request:
                self.waiting_since = asyncio.get_running_loop().time()
            if self._head > MAX_HEAD:
                self.end(Refusal.HEADERS_TOO_LARGE)

    def end(self, refusal: Refusal) -> None:
        """Refuse an incomplete header; what is being answered is answered first."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self.refused(refusal)
        if self._has_request:
            self.close()
            return
        if not self._head:
            self.force_close()
            return
        transport.write(_plain(refusal))
        self.close()
        _half_close(transport)
        asyncio.get_running_loop().call_later(_LINGER, self.force_close)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse invalid HTTP with our own response; aiohttp's quotes the request and reveals versions."""
        del message
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was under way")
        refusal = Refusal.INTERNAL_ERROR
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            long = isinstance(exc, LineTooLong) or "Too many" in str(exc)
            refusal = Refusal.HEADERS_TOO_LARGE if long else Refusal.REQUEST_MALFORMED
        self.refused(refusal)
        self.close()  # and take nothing more in
        response = answer(RefusalError(refusal, "expected HTTP/1.1, got something else", close=True), _FinalResponse)
        assert isinstance(response, _FinalResponse)  # noqa: S101 - for the type checker: it was asked for
        response.transport = self.transport
        return response


class _Server(CountedServer):
    """aiohttp's server, with connections of ours."""

    limits: ProxyLimits
    refused: Callable[[Refusal], None]
    is_unauthenticated: Callable[[asyncio.BaseTransport], bool]
    accepted_by: BoundedServer

    def __call__(self) -> _Connection:
        """Make a connection's protocol."""
        quiet = quiet_log()
        connection = _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=quiet,
            logger=quiet,
            max_line_size=MAX_LINE,
            max_field_size=MAX_FIELD,
            max_headers=MAX_FIELDS,
            keepalive_timeout=self.limits.idle_seconds,
            lingering_time=_LINGER,
            auto_decompress=False,
        )
        connection.refused = self.refused
        connection.is_unauthenticated = self.is_unauthenticated
        connection.accepted_by = self.accepted_by
        return connection

    def sweep(self) -> None:
        """Close connections that take too long."""
        now = asyncio.get_running_loop().time()
        for connection in self.connections:
            if isinstance(connection, _Connection):
                connection.sweep(now, self.limits)


def note_authenticated(request: web.BaseRequest, caller: str) -> None:
    """Keep the connection of an authenticated caller's request until it ends, however many others come.

    A caller's requests in progress must be limited to ``share_of_owner`` of all connections: nothing ends theirs.
    """
    if isinstance(request.protocol, _Connection):
        request.protocol.keep(caller)


def _always_authenticated(_connection: asyncio.BaseTransport) -> bool:
    """Treat every connection as authenticated."""
    return False


def _is_before(since: float | None, then: float) -> bool:
    return since is not None and since < then


class ProxyServer(HttpListener[_Server]):
    """One address with one handler."""

    def __init__(
        self,
        handler: ProxyRequestHandler,
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ProxyLimits,
        *,
        refused: Callable[[Refusal], None] = lambda _: None,
        is_unauthenticated: Callable[[asyncio.BaseTransport], bool] | None = None,
        schedule_by: Callable[[web.BaseRequest], ScheduleKey] | None = None,
    ) -> None:
        """``tls``: None for plain HTTP. ``refused`` is called for refusals before there is a request to handle.

        ``is_unauthenticated`` says of a connection that its client is not authenticated; None: not known of any
        connection. ``schedule_by``: see ``CountedServer``.
        """
        self._handler = handler
        self._schedule_by = schedule_by
        self._limits = limits
        self._refused = refused
        self._sweeper: asyncio.Task[None] | None = None
        # Who connects is a proxy, and all its users come from one address: no limit of one client below that of all.
        places = ConnectionLimits(
            connections=limits.connections,
            connections_of_client=limits.connections,
            replaces_oldest=is_unauthenticated is None,
        )
        unauthenticated = None
        if is_unauthenticated is not None:
            unauthenticated = UnauthenticatedLimits(
                is_unauthenticated=is_unauthenticated,
                connections=limits.unauthenticated_connections,
                connections_of_client=limits.unauthenticated_connections_of_client,
            )
        self._is_unauthenticated = is_unauthenticated or _always_authenticated
        super().__init__(address, tls, places, unauthenticated=unauthenticated)

    async def start(self) -> None:
        """Listen; raises ``SettingsError`` when the address cannot be had."""
        http = _Server(
            self._answer,
            handler_cancellation=True,
            per_pass=_PER_PASS,
            schedule_by=self._schedule_by,
            busy=self._busy,
        )
        http.limits = self._limits
        http.refused = self._refused
        http.is_unauthenticated = self._is_unauthenticated
        http.accepted_by = self._server
        await self._open(http)
        self._sweeper = asyncio.get_running_loop().create_task(call_every(self._sweep_period(), http.sweep))

    async def stop(self) -> None:
        """Stop listening, let requests end, close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None
        await super().stop()

    def _sweep_period(self) -> float:
        return min(_SWEEP, self._limits.header_seconds, self._limits.unauthenticated_seconds)

    def _busy(self) -> web.StreamResponse:
        """Refuse a request that may not wait."""
        self._refused(Refusal.PROXY_BUSY)
        return answer(RefusalError(Refusal.PROXY_BUSY, "too many requests wait", close=True))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to one request; an unexpected error is a 500, and logged."""
        connection = request.protocol
        assert isinstance(connection, _Connection)  # noqa: S101 - for the type checker: we make no others
        connection.handling = True
        try:
            return await self._handled(request)
        except RefusalError as refused:
            return answer(refused)
        finally:
            connection.handled()

    async def _handled(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            _check_request(request)
        except RefusalError as refused:
            self._refused(refused.refusal)
            raise
        try:
            return await self._handler(request)
        except RefusalError:
            raise
        except ConnectionError:
            raise  # the client has gone
        except Exception:  # noqa: BLE001 - the worker's edge
            _log.exception("answering a request failed")
            return answer(RefusalError(Refusal.INTERNAL_ERROR, "a bug", close=True))


def _check_request(request: web.BaseRequest) -> None:
    """Raise ``RefusalError`` for requests that aiohttp accepts and we do not."""
    if request.version not in _VERSIONS:
        raise RefusalError(Refusal.REQUEST_MALFORMED, "expected HTTP/1.1 or 1.0, got another version", close=True)
    size = sum(len(name) + len(value) for name, value in request.raw_headers)
    if size > MAX_HEAD:
        raise RefusalError(
            Refusal.HEADERS_TOO_LARGE, f"expected at most {MAX_HEAD} bytes of header, got more", close=True
        )


def _half_close(transport: asyncio.Transport) -> None:
    """Close our direction only."""
    if transport.can_write_eof() and not transport.is_closing():
        transport.write_eof()


def _plain(refusal: Refusal) -> bytes:
    """Return a raw response to an incomplete request."""
    status = STATUS[refusal]
    said = body(refusal, status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(said)}\r\n"
        "Cache-Control: no-store\r\nServer: nodeattest\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + said
