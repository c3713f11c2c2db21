"""Forwards one request to one upstream and streams the response back, until a deadline.

Promises: the request target is forwarded byte for byte as it was checked. Bodies are streamed with backpressure, and
never stored. A request's body that is too long, too slow or broken ends the request, and ``refused`` has the error;
``100 Continue`` is sent once the upstream reads. No redirect is followed, no cookie kept, no environment variable used,
no connection reused after a response to an upgrade. At the deadline a response is aborted, so that no client takes it
for complete.
Source: RFC 9112 §6, §7 and §9.3, RFC 9110 §10.1.1; CVE-2018-1002105 (a connection reused after a refused upgrade).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from aiohttp import (
    AddrInfoType,
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    HttpVersion11,
    TCPConnector,
    hdrs,
    web,
)
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from nodeattest_identity.proxy import upgrade
from nodeattest_identity.proxy.headers import Sender, request_headers, response_headers
from nodeattest_identity.proxy.limits import MAX_FIELD, MAX_FIELDS, MAX_LINE, ProxyLimits
from nodeattest_identity.proxy.paths import RequestTarget
from nodeattest_identity.proxy.refusals import Refusal, RefusalError
from nodeattest_kube.addresses import IPNetwork
from nodeattest_kube.transport import AskedResponse
from nodeattest_serving.bounded_server import RECEIVE_BUFFER
from nodeattest_serving.http_server import READ_AHEAD

_NO_BODY: Final = (web.RequestPayloadError, HttpProcessingError, OSError)
"""What aiohttp gives a reader of a body that is broken or breaks off (aiohttp http_parser.py, web_protocol.py)."""


class RequestBody:
    """A request's body on its way to the upstream."""

    def __init__(self, request: web.BaseRequest, limits: ProxyLimits) -> None:
        """Raise ``RefusalError`` if the announced length is too long."""
        self.length = request.content_length
        """Bytes; None: chunked."""
        self.refused: RefusalError | None = None
        """Why it ended too early; None: it did not."""
        self.answered = False
        self._request = request
        self._limits = limits
        self._timer: tuple[asyncio.Timeout, float] | None = None
        expected = request.headers.get(hdrs.EXPECT)
        if expected is not None and expected.lower() != "100-continue":
            raise RefusalError(
                Refusal.EXPECTATION_NOT_ALLOWED, "expected 100-continue, got another expectation", close=True
            )
        self._continue = expected is not None
        if limits.max_body is not None and self.length is not None and self.length > limits.max_body:
            raise self._too_large()

    def answer_within(self, timer: asyncio.Timeout, deadline: float) -> None:
        """Start the time limit of the response when the body ends."""
        self._timer = timer, deadline

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Read the body at the upstream's pace."""
        if self._continue:
            await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        content, count = self._request.content, 0
        while True:
            try:
                async with asyncio.timeout(self._limits.body_idle_seconds):
                    chunk = await content.readany()
            except TimeoutError:
                raise self._end(Refusal.REQUEST_TOO_SLOW, "expected more of the body, got nothing") from None
            except _NO_BODY:
                raise self._end(Refusal.REQUEST_MALFORMED, "expected a whole body, got a part") from None
            if not chunk:
                break
            count += len(chunk)
            if self._limits.max_body is not None and count > self._limits.max_body:
                self.refused = self._too_large()
                raise self.refused
            yield chunk
        if self._timer is not None and not self.answered:
            timer, deadline = self._timer
            timer.reschedule(min(deadline, asyncio.get_running_loop().time() + self._limits.answer_seconds))

    def _end(self, refusal: Refusal, detail: str) -> RefusalError:
        self.refused = RefusalError(refusal, detail, close=True)
        return self.refused

    def _too_large(self) -> RefusalError:
        return RefusalError(
            Refusal.BODY_TOO_LARGE, f"expected at most {self._limits.max_body} bytes, got more", close=True
        )


_IDLE_UPSTREAM: Final = 10.0
"""Seconds that an idle upstream connection is kept: less than known servers keep it."""
_NEVER_FORWARDED: Final = frozenset({"CONNECT", "TRACE"})
"""TRACE would return the injected headers to the client."""
_RESET: Final = struct.pack("ii", 1, 0)
"""``struct linger``: close with a reset and discard unsent data."""
_SKIPPED_HEADERS: Final = frozenset({hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE})
"""Headers that aiohttp would add to a client's request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """An upstream server."""

    host: str
    port: int
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str | None = None
    """Expected name in the upstream's certificate; None: the host."""

    def url(self, target: RequestTarget) -> URL:
        """Return the URL of a target; nothing is decoded or normalised."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return URL(f"{'http' if self.tls is None else 'https'}://{host}:{self.port}{target.raw}", encoded=True)


def _unchanged(response: web.StreamResponse) -> web.StreamResponse:
    return response


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions:
    """How to forward a request."""

    upstream: Upstream
    target: RequestTarget
    """The request target at the upstream."""
    deadline: float
    """When the request is aborted, by the loop's clock."""
    sender: Sender
    inject: Sequence[tuple[str, str]] = ()
    """Header fields to add; client fields of the same names are removed first."""
    without: frozenset[bytes] = frozenset()
    """Further fields to remove, by canonical name."""
    replace: Callable[[web.StreamResponse], web.StreamResponse] = _unchanged
    """Returns the response to send in place of the upstream's: itself, or a whole ``web.Response``."""


def sender_of(request: web.BaseRequest, trusted: Sequence[IPNetwork] = ()) -> Sender:
    """Return the sender of a request, by its connection alone."""
    name = request.protocol.peername
    peer = str(name[0]) if isinstance(name, tuple) and name else "unknown"
    return Sender(peer=peer, scheme="http" if request.protocol.ssl_context is None else "https", trusted=trusted)


def _open_socket(address: AddrInfoType) -> socket.socket:  # pyright: ignore[reportUnknownParameterType] - aiohttp's
    """Open a socket to an upstream that reads little ahead."""
    opened = socket.socket(*address[:3])
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    return opened


class Forwarder:
    """Forwards requests; an async context manager that holds the upstream connections."""

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self._session: ClientSession | None = None
        self._upgrades: ClientSession | None = None
        """Its connections serve one request each: after an upgrade request a connection is not reused."""

    async def __aenter__(self) -> Self:
        """Open the pools."""
        self._session = self._open(kept=True)
        self._upgrades = self._open(kept=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close every connection."""
        for session in (self._session, self._upgrades):
            if session is not None:
                await session.close()

    def _open(self, *, kept: bool) -> ClientSession:
        return ClientSession(
            connector=TCPConnector(
                limit=self._limits.upstream_connections,
                force_close=not kept,
                keepalive_timeout=_IDLE_UPSTREAM if kept else None,
                socket_factory=_open_socket,
            ),
            read_bufsize=READ_AHEAD,
            auto_decompress=False,
            response_class=AskedResponse,
            cookie_jar=DummyCookieJar(),
            skip_auto_headers=_SKIPPED_HEADERS,
            trust_env=False,
            timeout=ClientTimeout(total=None, sock_connect=self._limits.connect_seconds),
            max_line_size=MAX_LINE,
            max_field_size=MAX_FIELD,
            max_headers=MAX_FIELDS,
        )

    async def forward(self, request: web.BaseRequest, options: ForwardOptions) -> web.StreamResponse:
        """Forward a request and its response; raises ``RefusalError`` as long as nothing was sent to the client.

        1. Check method, upgrade and expectation. 2. Check the body's length. 3. Make the header. 4. Send, and wait for
        the response header. 5. Relay the response, or tunnel a WebSocket, until the deadline.
        """
        # 1
        if request.method in _NEVER_FORWARDED:
            raise RefusalError(Refusal.METHOD_NOT_ALLOWED, f"expected another method, got {request.method}", close=True)
        key = upgrade.requested(request)
        # 2
        body_stream = RequestBody(request, self._limits) if request.can_read_body else None
        # 3
        headers = request_headers(
            request.raw_headers,
            sender=options.sender,
            inject=options.inject,
            without=options.without,
        )
        if body_stream is not None and body_stream.length is not None:
            headers[hdrs.CONTENT_LENGTH] = str(body_stream.length)
        if key is not None:
            headers.update(upgrade.HEADERS)
        exchange = _Exchange(request, key, options.replace, self._limits.forwarded_unread_seconds)
        now = asyncio.get_running_loop().time()
        answer_by = min(options.deadline, now + self._limits.answer_seconds)
        try:
            async with asyncio.timeout_at(answer_by if body_stream is None else options.deadline) as timer:
                if body_stream is not None:
                    body_stream.answer_within(timer, options.deadline)
                response = await self._send(request, options, headers, body_stream)  # 4
                if body_stream is not None:
                    body_stream.answered = True
                timer.reschedule(options.deadline)
                return await exchange.relay(response)  # 5
        except TimeoutError:
            over = asyncio.get_running_loop().time() >= options.deadline
            refusal = Refusal.TIME_OVER if over else Refusal.UPSTREAM_TOO_SLOW
            return exchange.abort(RefusalError(refusal, "expected an answer in time, got none"))
        except ClientError:
            return exchange.abort(RefusalError(Refusal.UPSTREAM_MALFORMED, "expected a whole answer, got a part"))

    async def _send(
        self,
        request: web.BaseRequest,
        options: ForwardOptions,
        headers: CIMultiDict[str],
        body_stream: RequestBody | None,
    ) -> ClientResponse:
        """Send the request and return the response header; raises ``RefusalError``."""
        session = self._session if hdrs.UPGRADE not in headers else self._upgrades
        if session is None:
            raise RuntimeError("the forwarder was not entered")
        upstream = options.upstream
        try:
            return await session.request(
                request.method,
                upstream.url(options.target),
                headers=headers,
                data=None if body_stream is None else body_stream.chunks(),
                allow_redirects=False,
                ssl=upstream.tls or True,
                server_hostname=upstream.server_name if upstream.tls is not None else None,
            )
        except ClientConnectorError as error:
            raise RefusalError(
                Refusal.UPSTREAM_UNREACHABLE, f"expected to reach the upstream, got {error.os_error.strerror}"
            ) from None
        except ClientError as error:
            if body_stream is not None and body_stream.refused is not None:
                raise body_stream.refused from None
            raise RefusalError(Refusal.UPSTREAM_MALFORMED, f"expected an answer, got {type(error).__name__}") from None


class _Exchange:
    """The response to one client."""

    def __init__(
        self,
        request: web.BaseRequest,
        key: str | None,
        replace: Callable[[web.StreamResponse], web.StreamResponse],
        unread_seconds: float,
    ) -> None:
        """``key``: of a request for WebSocket. ``unread_seconds``: how long a client that does not read has."""
        self._request = request
        self._key = key
        self._replace = replace
        self._unread_seconds = unread_seconds
        self._sent: web.StreamResponse | None = None

    async def relay(self, response: ClientResponse) -> web.StreamResponse:
        """Relay a response; after an upgrade request the upstream connection is closed."""
        try:
            if self._key is not None and response.status == HTTPStatus.SWITCHING_PROTOCOLS:
                sent = self._sent = upgrade.accepted(response, self._key)
                await upgrade.tunnel(self._request, response, sent, self._unread_seconds)
                return sent
            sent = self._sent = self._replace(_new_response(response))
            if self._key is not None:
                sent.force_close()
            async with asyncio.timeout(self._unread_seconds):
                await sent.prepare(self._request)
            if not isinstance(sent, web.Response):
                await self._relay_body(response, sent)
            async with asyncio.timeout(self._unread_seconds):
                await sent.write_eof()
            return sent
        finally:
            response.close()

    async def _relay_body(self, response: ClientResponse, sent: web.StreamResponse) -> None:
        """Relay a body, piece by piece, while the client reads."""
        while piece := await response.content.readany():
            async with asyncio.timeout(self._unread_seconds):
                await sent.write(piece)
                await self._request.writer.drain()

    def abort(self, refused: RefusalError) -> web.StreamResponse:
        """Abort an incomplete response so that the client notices; raises if none has begun."""
        sent = self._sent
        if sent is None or not sent.prepared:
            raise refused
        sent.force_close()
        transport = self._request.transport
        if transport is not None:
            if self._request.version < HttpVersion11:  # there an end of the connection is the end of the answer
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        return sent


def _new_response(response: ClientResponse) -> web.StreamResponse:
    """Make the client's response from an upstream's; raises ``RefusalError``."""
    if response.status < HTTPStatus.OK:
        raise RefusalError(Refusal.UPSTREAM_MALFORMED, f"expected a final answer, got {response.status}")
    sent = web.StreamResponse(status=response.status, headers=response_headers(response.raw_headers))
    if hdrs.TRANSFER_ENCODING in response.headers:
        sent.headers.popall(hdrs.CONTENT_LENGTH, None)
    sent.headers.setdefault(hdrs.SERVER, "nodeattest")
    return sent
