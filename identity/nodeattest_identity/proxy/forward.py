"""Forwards one request to one upstream and streams the response back, until a deadline.

The request target is forwarded byte for byte as it was checked. Bodies are streamed with backpressure. No redirect is
followed, no cookie kept. At the deadline a response is aborted, so that no client takes it for complete.
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
from typing import Final

import aiohttp
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from nodeattest_identity.proxy import upgrade
from nodeattest_identity.proxy.refusals import MAX_FIELD, MAX_FIELDS, MAX_LINE, ProxyLimits, Refusal, RefusalError
from nodeattest_identity.proxy.request import RequestTarget, request_headers, response_headers
from nodeattest_kube.transport import AskedResponse
from nodeattest_serving.bounded_server import RECEIVE_BUFFER, BindAddress
from nodeattest_serving.http_server import READ_AHEAD

_BROKEN_BODY: Final = (web.RequestPayloadError, HttpProcessingError, OSError)
"""What aiohttp raises to a reader of an invalid or incomplete body (http_parser.py, web_protocol.py)."""
_IDLE_UPSTREAM: Final = 10.0
"""Seconds that an idle upstream connection is kept: less than known servers keep it."""
_NEVER_FORWARDED: Final = frozenset({"CONNECT", "TRACE"})
"""TRACE would return the injected headers to the client."""
_RESET: Final = struct.pack("ii", 1, 0)
"""``struct linger``: close with a reset and discard unsent data."""
_SKIPPED_HEADERS: Final = frozenset({hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE})
"""Headers that aiohttp would add to a client's request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions:
    """How to forward a request."""

    upstream: BindAddress
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    server_name: str | None = None
    """Expected name in the upstream's certificate."""
    target: RequestTarget
    """The request target at the upstream."""
    deadline: float
    """When the request is aborted, by the loop's clock."""
    inject: Sequence[tuple[str, str]] = ()
    """Header fields to add; client fields of the same names are removed first."""
    without: frozenset[bytes] = frozenset()
    """Further fields to remove, by canonical name."""
    replace: Callable[[web.StreamResponse], web.StreamResponse] = lambda response: response
    """Returns the response to send in place of the upstream's: itself, or a whole ``web.Response``."""

    @property
    def url(self) -> URL:
        """The URL of the target at the upstream; nothing is decoded or normalised."""
        return URL(f"{'http' if self.tls is None else 'https'}://{self.upstream}{self.target.raw}", encoded=True)


class _RequestBody:
    """A request's body on its way to the upstream."""

    def __init__(self, request: web.BaseRequest, limits: ProxyLimits, timer: asyncio.Timeout) -> None:
        """Raise ``RefusalError`` for another expectation than 100-continue, and for a length over the limit."""
        self.length = request.content_length
        """Bytes; None: chunked."""
        self.refused: RefusalError | None = None
        """Why it was not forwarded to its end."""
        self.timer: asyncio.Timeout | None = timer
        """Ends the wait for the response, which begins with the end of the body; None once there is one."""
        self._request, self._limits = request, limits
        self._expected = request.headers.get(hdrs.EXPECT)
        if self._expected is not None and self._expected.lower() != "100-continue":
            raise RefusalError(Refusal.EXPECTATION_NOT_ALLOWED, "expected 100-continue, got another", close=True)
        self._count(self.length or 0)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Read the body at the upstream's pace; an error is also kept in ``refused``."""
        if self._expected is not None:
            await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        size = 0
        try:
            while chunk := await self._read():
                size += len(chunk)
                self._count(size)
                yield chunk
        except RefusalError as error:
            self.refused = error
            raise
        if self.timer is not None:
            _end_within(self.timer, self._limits.answer_seconds)

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(self._limits.body_idle_seconds):
                return await self._request.content.readany()
        except TimeoutError:
            raise RefusalError(Refusal.REQUEST_TOO_SLOW, "expected more of the body, got none", close=True) from None
        except _BROKEN_BODY:
            raise RefusalError(Refusal.REQUEST_MALFORMED, "expected a whole body, got a part", close=True) from None

    def _count(self, size: int) -> None:
        limit = self._limits.max_body
        if limit is not None and size > limit:
            raise RefusalError(Refusal.BODY_TOO_LARGE, f"expected at most {limit} bytes, got more", close=True)


class Forwarder:
    """Forwards requests, and keeps connections to upstreams."""

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits

    async def open(self) -> None:
        """Open the pools; a connection for an upgrade request serves no other."""
        self._session, self._upgrades = self._open(kept=True), self._open(kept=False)

    async def close(self) -> None:
        await self._session.close()
        await self._upgrades.close()

    def _open(self, *, kept: bool) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._limits.upstream_connections,
                force_close=not kept,
                keepalive_timeout=_IDLE_UPSTREAM if kept else None,
                socket_factory=_open_socket,
            ),
            read_bufsize=READ_AHEAD,
            auto_decompress=False,
            response_class=AskedResponse,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_SKIPPED_HEADERS,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_seconds),
            max_line_size=MAX_LINE,
            max_field_size=MAX_FIELD,
            max_headers=MAX_FIELDS,
        )

    async def forward(self, request: web.BaseRequest, options: ForwardOptions) -> web.StreamResponse:
        """Forward a request and its response; raises ``RefusalError`` as long as nothing was sent to the client.

        1. Check method and upgrade, and make the header. 2. Send, and wait for the response header. 3. Relay the
        response, or tunnel a WebSocket, until the deadline.
        """
        # 1
        if request.method in _NEVER_FORWARDED:
            raise RefusalError(Refusal.METHOD_NOT_ALLOWED, f"expected another method, got {request.method}", close=True)
        key = upgrade.requested(request)
        headers = _headers(request, options)
        if key is not None:
            headers.update(upgrade.HEADERS)
        sent: web.StreamResponse | None = None
        try:
            async with asyncio.timeout_at(options.deadline) as timer:
                response = await self._send(request, options, headers, timer)  # 2
                try:
                    # 3
                    timer.reschedule(options.deadline)
                    if key is not None and response.status == HTTPStatus.SWITCHING_PROTOCOLS:
                        sent = upgrade.accepted(response, key)
                        await upgrade.tunnel(request, response, sent, self._limits.forwarded_unread_seconds)
                        return sent
                    sent = options.replace(_new_response(response))
                    if key is not None:
                        sent.force_close()
                    await self._relay(request, response, sent)
                    return sent
                finally:
                    response.close()
        except TimeoutError:
            over = asyncio.get_running_loop().time() >= options.deadline
            refusal = Refusal.TIME_OVER if over else Refusal.UPSTREAM_TOO_SLOW
            refused = RefusalError(refusal, "expected an answer in time, got none")
        except aiohttp.ClientError:
            refused = RefusalError(Refusal.UPSTREAM_MALFORMED, "expected a whole answer, got a part")
        if sent is None or not sent.prepared:
            raise refused
        _abort(request, sent)
        return sent

    async def _send(
        self, request: web.BaseRequest, options: ForwardOptions, headers: CIMultiDict[str], timer: asyncio.Timeout
    ) -> aiohttp.ClientResponse:
        body = _RequestBody(request, self._limits, timer) if request.can_read_body else None
        if body is None:
            _end_within(timer, self._limits.answer_seconds)
        elif body.length is not None:
            headers[hdrs.CONTENT_LENGTH] = str(body.length)
        session = self._upgrades if hdrs.UPGRADE in headers else self._session
        try:
            return await session.request(
                request.method,
                options.url,
                headers=headers,
                data=None if body is None else body.chunks(),
                allow_redirects=False,
                ssl=options.tls or True,
                server_hostname=options.server_name,
            )
        except aiohttp.ClientConnectorError as error:
            got = error.os_error.strerror
            raise RefusalError(Refusal.UPSTREAM_UNREACHABLE, f"expected to reach the upstream, got {got}") from None
        except aiohttp.ClientError as error:
            if body is not None and body.refused is not None:
                raise body.refused from None
            raise RefusalError(Refusal.UPSTREAM_MALFORMED, f"expected an answer, got {type(error).__name__}") from None
        finally:
            if body is not None:
                body.timer = None

    async def _relay(
        self, request: web.BaseRequest, response: aiohttp.ClientResponse, sent: web.StreamResponse
    ) -> None:
        unread = self._limits.forwarded_unread_seconds
        async with asyncio.timeout(unread):
            await sent.prepare(request)
        while not isinstance(sent, web.Response) and (piece := await response.content.readany()):
            async with asyncio.timeout(unread):
                await sent.write(piece)
                await request.writer.drain()
        async with asyncio.timeout(unread):
            await sent.write_eof()


def _headers(request: web.BaseRequest, options: ForwardOptions) -> CIMultiDict[str]:
    """Make the header for the upstream; the client is known by its connection alone."""
    name = request.protocol.peername
    return request_headers(
        request.raw_headers,
        peer=str(name[0]) if isinstance(name, tuple) and name else "unknown",
        scheme="http" if request.protocol.ssl_context is None else "https",
        inject=options.inject,
        without=options.without,
    )


def _end_within(timer: asyncio.Timeout, seconds: float) -> None:
    end = asyncio.get_running_loop().time() + seconds
    timer.reschedule(min(timer.when() or end, end))


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:  # pyright: ignore[reportUnknownParameterType] - aiohttp's
    """Open a socket to an upstream that reads little ahead."""
    opened = socket.socket(*address[:3])
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    return opened


def _new_response(response: aiohttp.ClientResponse) -> web.StreamResponse:
    """Make the client's response from an upstream's; raises ``RefusalError``."""
    if response.status < HTTPStatus.OK:
        raise RefusalError(Refusal.UPSTREAM_MALFORMED, f"expected a final answer, got {response.status}")
    sent = web.StreamResponse(status=response.status, headers=response_headers(response.raw_headers))
    if hdrs.TRANSFER_ENCODING in response.headers:
        sent.headers.popall(hdrs.CONTENT_LENGTH, None)
    sent.headers.setdefault(hdrs.SERVER, "nodeattest")
    return sent


def _abort(request: web.BaseRequest, sent: web.StreamResponse) -> None:
    """End a response so that the client does not take it for complete: by a reset where its end would look orderly."""
    sent.force_close()
    if request.transport is None:
        return
    if request.version < aiohttp.HttpVersion11:
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    request.transport.abort()
