"""An HTTP/1.1 server by aiohttp's public interface: bounded in bytes and in time before a request is handled.

aiohttp refuses ambiguous framing. A client that does not read its response is disconnected. Bodies stay compressed.
Out of scope: connections (``bounded_server``), how much of a body a handler reads.
Source: RFC 9112 §2.2, §6.1, §9.6; RFC 6585 §5; apimachinery metav1.Status.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import ClassVar, Final, TypeVar

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.http_websocket import WebSocketReader
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from nodeattest_kube.addresses import IPNetwork
from nodeattest_parsing.values import JsonObject
from nodeattest_serving.bounded_server import BindAddress, BoundedServer, ConnectionLimits, UnauthenticatedLimits

_LINGER: Final = 1.0
"""Seconds to keep reading after an early response: a reset could overtake the response."""
READ_AHEAD: Final = 16 * 1024
"""Bytes of a body that are read before they are wanted, of a connection."""
_SHUTDOWN: Final = 3.0
"""Seconds for requests in progress at shutdown."""
_NO_HEADERS: Final[Mapping[str, str]] = {}
_USUAL_HEADERS: Final = {
    "Content-Type": "application/json",
    "Cache-Control": "no-cache, private",
    "X-Content-Type-Options": "nosniff",
    "Server": "nodeattest",
}
_REFUSALS: Final[dict[HTTPStatus, tuple[str, Mapping[str, str]]]] = {
    HTTPStatus.BAD_REQUEST: ("BadRequest", {}),
    HTTPStatus.UNAUTHORIZED: ("Unauthorized", {"WWW-Authenticate": "Bearer"}),
    HTTPStatus.NOT_FOUND: ("NotFound", {}),
    HTTPStatus.METHOD_NOT_ALLOWED: ("MethodNotAllowed", {}),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("RequestEntityTooLarge", {}),
    HTTPStatus.TOO_MANY_REQUESTS: ("TooManyRequests", {"Retry-After": "1"}),
    HTTPStatus.INTERNAL_SERVER_ERROR: ("InternalError", {}),
    HTTPStatus.SERVICE_UNAVAILABLE: ("ServiceUnavailable", {"Retry-After": "5"}),
}
"""StatusReason and headers of each refusal."""

_R = TypeVar("_R", bound=web.Response)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One HTTP answer, with a JSON body unless its headers say otherwise."""

    status: HTTPStatus
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    written: Callable[[], None] = lambda: None
    """Called once when it was written, or when its connection ended before."""

    @property
    def all_headers(self) -> Mapping[str, str]:
        return {**_USUAL_HEADERS, **self.headers}


def refusal(status: HTTPStatus, headers: Mapping[str, str] = _NO_HEADERS) -> Reply:
    """Make the refusal that an API server would send: a ``Status``."""
    reason, usual = _REFUSALS[status]
    return Reply(status=status, body=failure_status(status, status.phrase, reason), headers={**usual, **headers})


def failure_status(status: HTTPStatus, message: str, reason: str) -> bytes:
    document: JsonObject = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status.value,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def response(reply: Reply, *, last: bool, kind: type[_R] = web.Response) -> _R:
    """Convert a reply to aiohttp's response; ``last``: the connection ends after it."""
    made = kind(status=reply.status, body=reply.body, headers=reply.all_headers)
    if last:
        made.force_close()
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits of one request and its connection."""

    line: int = 2048
    """Bytes of a request line."""
    field: int = 8190
    """Bytes of one header field."""
    fields: int = 64
    head: int = 32 * 1024
    """Bytes of request line and header together."""
    header_seconds: float
    """From the first byte of a request, or of a connection, to the end of its header."""
    idle_seconds: float
    """Between two requests of a connection."""
    unread_seconds: float
    """How long a response waits for a client that does not read."""


class _LastResponse(web.Response):
    """The response to invalid HTTP; the connection stays open for a moment, so that no reset overtakes it."""

    transport: asyncio.Transport | None = None

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        if self.transport is not None:
            _half_close(self.transport)
            await asyncio.sleep(_LINGER)


class ServerConnection(web.RequestHandler):
    """aiohttp's connection with limits for the header's bytes and seconds."""

    def __init__(self, server: _Server, listener: HttpListener) -> None:
        limits = listener.http
        quiet = logging.Logger("http", logging.CRITICAL + 1)  # noqa: LOG001 - without a parent: aiohttp's lines quote requests
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=quiet,
            logger=quiet,
            max_line_size=limits.line,
            max_field_size=limits.field,
            max_headers=limits.fields,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=_LINGER,
            read_bufsize=READ_AHEAD,
            auto_decompress=False,
        )
        self._listener, self._limits = listener, limits
        self.opened = 0.0
        """Loop time."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._header_bytes = 0
        """Of the incomplete header."""
        self._incoming_body: StreamReader = EMPTY_PAYLOAD
        """Of the last request."""
        self._is_answering = False
        self._is_kept = False
        self._is_refused = False
        self._is_tunnel = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timers; bytes may have come with the end of the handshake."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker: streams have no others
        # Who drains knows that nothing is left to send; with TLS 0 never ends.
        transport.set_write_buffer_limits(high=1)
        self.opened = asyncio.get_running_loop().time()
        lifetime = self._listener.lifetime(transport)
        if lifetime is not None:
            self._start_timer("life", lifetime, transport.abort)
        self._await_header()
        super().connection_made(transport)
        asyncio.get_running_loop().call_soon(self._check_header)

    def connection_lost(self, exc: BaseException | None) -> None:
        for timer in self._timers.values():
            timer.cancel()
        super().connection_lost(exc)
        self._listener.ended(self)

    def set_parser(self, parser: WebSocketReader, data_received_cb: Callable[[], None] | None = None) -> None:
        """Give all further bytes to a tunnel."""
        self._is_tunnel = True
        super().set_parser(parser, data_received_cb)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a header; what follows a body within one piece is counted with the next one."""
        if self._is_refused:
            return
        is_header = not self._is_tunnel and self._incoming_body.is_eof()
        super().data_received(data)
        if is_header:
            self._header_bytes += len(data)
            if self.transport is None:
                return
            if not self._is_answering and "header" not in self._timers:
                self._await_header()
            if self._header_bytes > self._limits.head:  # unless the request begins before
                asyncio.get_running_loop().call_soon(self._check_header)

    def request_began(self, body: StreamReader) -> None:
        self._incoming_body, self._header_bytes, self._is_answering = body, 0, True
        timer = self._timers.pop("header", None)
        if timer is not None:
            timer.cancel()

    def request_ended(self) -> None:
        self._listener.request_ended(self, authenticated=self._is_kept)
        self._is_answering = self._is_kept = False
        if self._header_bytes:
            self._await_header()

    def keep(self, caller: str) -> None:
        """Keep the connection of an authenticated caller's request until it ends, however many others come.

        A caller's requests in progress must be limited to ``share_of_owner`` of all connections: nothing ends theirs.
        """
        self._is_kept = True
        self._listener.keep(self, caller)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuse invalid HTTP with a fixed response; aiohttp's quotes the request and reveals versions."""
        del message
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was under way")
        kind = HTTPStatus.INTERNAL_SERVER_ERROR
        if status < kind:
            is_large = isinstance(exc, LineTooLong) or "Too many" in str(exc)
            kind = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if is_large else HTTPStatus.BAD_REQUEST
        self._is_refused = True
        self.close()
        refused = response(self._listener.refuse(kind), last=True, kind=_LastResponse)
        refused.transport = transport = self.transport
        if transport is not None:
            self._start_timer("linger", self._limits.unread_seconds, transport.abort)
        return refused

    def _await_header(self) -> None:
        self._start_timer("header", self._limits.header_seconds, lambda: self._refuse(HTTPStatus.REQUEST_TIMEOUT))

    def _start_timer(self, name: str, seconds: float, callback: Callable[[], None]) -> None:
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, callback)

    def _check_header(self) -> None:
        if self._header_bytes > self._limits.head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _refuse(self, status: HTTPStatus) -> None:
        """Refuse an incomplete header; what is being answered is answered first."""
        transport = self.transport
        if self._is_refused or transport is None or transport.is_closing():
            return
        self._is_refused = True
        reply = self._listener.refuse(status)
        if self._is_answering:
            self.close()
        elif not self._header_bytes:
            transport.abort()
        else:
            transport.write(_last_bytes(reply))
            _half_close(transport)
            self._start_timer("linger", _LINGER, transport.abort)


def _last_bytes(reply: Reply) -> bytes:
    """Write the last response of a connection, to a request that is not complete."""
    fields = {**reply.all_headers, "Content-Length": str(len(reply.body)), "Connection": "close"}
    status = f"HTTP/1.1 {reply.status.value} {reply.status.phrase}"
    lines = (status, *(f"{name}: {value}" for name, value in fields.items()), "", "")
    return "\r\n".join(lines).encode() + reply.body


def _half_close(transport: asyncio.Transport) -> None:
    if transport.can_write_eof() and not transport.is_closing():
        transport.write_eof()


class _Server(web.Server):
    """aiohttp's server of ``ServerConnection``."""

    def __init__(self, listener: HttpListener) -> None:
        self.listener = listener
        super().__init__(self._answer, request_factory=_new_request, handler_cancellation=listener.cancels_requests)

    def __call__(self) -> ServerConnection:
        return ServerConnection(self, self.listener)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, ServerConnection)  # noqa: S101 - for the type checker: we make no others
        try:
            answer = await self.listener.answer(request)
            upgrades = request.method == "CONNECT" or "Upgrade" in request.headers
            if upgrades and answer.status != HTTPStatus.SWITCHING_PROTOCOLS:
                answer.force_close()  # what follows a declined upgrade is of another protocol
            try:
                async with asyncio.timeout(self.listener.http.unread_seconds):
                    await answer.prepare(request)
                    await answer.write_eof()
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
            return answer
        finally:
            connection.request_ended()


def _new_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    if isinstance(protocol, ServerConnection):
        protocol.request_began(payload)
    return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


class HttpListener(BoundedServer):
    """A bounded server on one address, and the HTTP server behind it while it runs."""

    cancels_requests: ClassVar[bool] = False
    """Whether a client that disconnects cancels its request."""

    def __init__(
        self,
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ConnectionLimits,
        http: HttpLimits,
        *,
        unauthenticated: UnauthenticatedLimits | None = None,
        allowed: Collection[IPNetwork] = (),
    ) -> None:
        super().__init__(address, tls, limits, unauthenticated=unauthenticated, allowed=allowed)
        self.http = http
        self._server: _Server | None = None

    @abstractmethod
    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""

    def refuse(self, status: HTTPStatus) -> Reply:
        """Return the reply to what is no request: malformed, too large, too slow, or a bug of ours."""
        return refusal(status if status is HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST)

    def lifetime(self, _connection: asyncio.Transport, /) -> float | None:
        """Return the seconds after which a connection is aborted; None: it has no limit."""
        return None

    async def start(self) -> None:
        self._server = _Server(self)
        await self.open()

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self.close()
            server.pre_shutdown()
            await server.shutdown(_SHUTDOWN)

    def make(self) -> asyncio.Protocol:
        assert self._server is not None  # noqa: S101 - for the type checker: there is a server before there are connections
        return self._server()
