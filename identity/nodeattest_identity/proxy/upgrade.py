"""Upgrades to WebSocket, and to nothing else.

Bytes are tunnelled only after a 101 with the right accept key; after any other response both connections are closed.
Source: RFC 6455 §4.1 and §4.2, RFC 9110 §7.8; CVE-2018-1002105: kube-apiserver copied bytes after a refused upgrade.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from http import HTTPStatus
from typing import Final

from aiohttp import ClientResponse, hdrs, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_writer import StreamWriter

from nodeattest_identity.proxy.refusals import Refusal, RefusalError
from nodeattest_identity.proxy.request import response_headers

HEADERS: Final = {hdrs.CONNECTION: "Upgrade", hdrs.UPGRADE: "websocket"}
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455 §1.3."""
_KEY: Final = 16
"""Bytes of a key."""


def requested(request: web.BaseRequest) -> str | None:
    """Return the WebSocket key of a request; None: no upgrade. Raises ``RefusalError``."""
    offered = _tokens(request, hdrs.UPGRADE)
    if "HTTP2-Settings" in request.headers or (offered and "websocket" not in offered):
        raise RefusalError(Refusal.UPGRADE_NOT_ALLOWED, "expected no upgrade but to websocket, got another", close=True)
    if not offered:
        return None
    keys = request.headers.getall(hdrs.SEC_WEBSOCKET_KEY, [])
    is_valid = (
        offered == ["websocket"]
        and request.method == "GET"
        and request.version == (1, 1)
        and "upgrade" in _tokens(request, hdrs.CONNECTION)
        and request.headers.getall(hdrs.SEC_WEBSOCKET_VERSION, []) == ["13"]
        and len(keys) == 1
        and _is_key(keys[0])
        and not request.can_read_body
    )
    if not is_valid:
        raise RefusalError(
            Refusal.UPGRADE_MALFORMED, "expected a GET of HTTP/1.1 with one key, got another upgrade", close=True
        )
    return keys[0]


def accepted(response: ClientResponse, key: str) -> web.StreamResponse:
    """Make the client's 101 from the upstream's; raises ``RefusalError``."""
    digest = hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()
    accepts = response.headers.getall(hdrs.SEC_WEBSOCKET_ACCEPT, [])
    upgrade = response.headers.get(hdrs.UPGRADE, "").strip().lower()
    if accepts != [base64.b64encode(digest).decode()] or upgrade != "websocket":
        raise RefusalError(Refusal.UPSTREAM_MALFORMED, "expected a 101 that answers the key, got another", close=True)
    headers = response_headers(response.raw_headers)
    headers.popall(hdrs.CONTENT_LENGTH, None)
    headers.update(HEADERS)
    sent = web.StreamResponse(status=HTTPStatus.SWITCHING_PROTOCOLS, headers=headers)
    sent.headers.setdefault(hdrs.SERVER, "nodeattest")
    sent.force_close()
    return sent


async def tunnel(
    request: web.BaseRequest, response: ClientResponse, sent: web.StreamResponse, unread_seconds: float
) -> None:
    """Send the 101 and tunnel bytes both ways until one side ends, or does not read for so long."""
    connection = response.connection
    server = connection.protocol if connection is not None else None
    if server is None:
        raise RefusalError(Refusal.UPSTREAM_MALFORMED, "expected a connection that stays, got its end", close=True)
    await sent.prepare(request)
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    client = request.protocol
    to_client = _Pipe(server, client, ended, unread_seconds)
    to_server = _Pipe(client, server, ended, unread_seconds)
    try:
        server.set_parser(to_client, to_client)
        client.set_parser(to_server)  # pyright: ignore[reportArgumentType] - it feeds bytes, as it would aiohttp's reader
        await ended
    finally:
        to_client.stop()
        to_server.stop()


class _Pipe:
    """One direction of a tunnel; aiohttp feeds it every byte as it would a parser."""

    __slots__ = ("_ended", "_sink", "_source", "_unread_seconds", "_waiting")

    def __init__(
        self, source: BaseProtocol, sink: BaseProtocol, ended: asyncio.Future[None], unread_seconds: float
    ) -> None:
        self._source = source
        self._sink = sink
        self._ended = ended
        self._unread_seconds = unread_seconds
        self._waiting: asyncio.Task[None] | None = None

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        transport = self._sink.transport
        if transport is None or transport.is_closing() or self._ended.done():
            self.feed_eof()
            return False, b""
        transport.write(data)
        if self._sink.writing_paused and self._waiting is None:
            self._source.pause_reading()
            self._waiting = asyncio.get_running_loop().create_task(self._resume())
        return False, b""

    def feed_eof(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def is_eof(self) -> bool:
        return self._ended.done()

    def set_exception(self, _error: BaseException, _cause: BaseException | None = None) -> None:
        self.feed_eof()

    def stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def _resume(self) -> None:
        try:
            async with asyncio.timeout(self._unread_seconds):
                await StreamWriter(self._sink, asyncio.get_running_loop()).drain()
        except (ConnectionError, TimeoutError):
            self.feed_eof()
        finally:
            self._waiting = None
        if self._source.transport is not None:
            self._source.resume_reading()


def _tokens(request: web.BaseRequest, name: str) -> list[str]:
    values = request.headers.getall(name, [])
    return [token for value in values for part in value.split(",") if (token := part.strip().lower())]


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY
    except ValueError:
        return False
