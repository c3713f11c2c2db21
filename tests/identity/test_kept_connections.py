"""A listener that keeps connections for further requests: how many, how long, and who loses his."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import web

from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits
from nodeattest_serving.listener import Listener
from nodeattest_serving.replies import Reply

LOOPBACK = "127.0.0.1"
GET = b"GET /a HTTP/1.1\r\nHost: here\r\n\r\n"
LIMIT = 10.0
"""Seconds for one exchange; whatever is waited for here comes within one."""


async def echo_path(request: web.BaseRequest, client: str) -> Reply:
    return Reply(status=HTTPStatus.OK, body=f"{client} {request.raw_path}".encode(), headers={"ETag": '"1"'})


@asynccontextmanager
async def connected(limits: ConnectionLimits) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    listener = Listener(echo_path, BindAddress(LOOPBACK, 0), None, limits)
    await listener.start()
    try:
        async with asyncio.timeout(LIMIT):
            reader, writer = await asyncio.open_connection(LOOPBACK, listener.port)
            yield reader, writer
            writer.close()
    finally:
        await listener.stop()


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head, await reader.readexactly(int(length.split(b":")[1]))


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Read what comes until the end, which may be a reset: what came before it counts."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while more := await reader.read(65536):
            received += more
    return received


async def test_a_connection_carries_request_after_request() -> None:
    async with connected(ConnectionLimits(idle_seconds=5.0)) as (reader, writer):
        for _ in range(3):
            writer.write(GET)
            head, body = await answer(reader)
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert b"connection: close" not in head.lower()
            assert body == b"127.0.0.1 /a"


async def test_more_than_any_request_has_ends_the_connection_although_many_requests_had_less() -> None:
    async with connected(ConnectionLimits(idle_seconds=5.0)) as (reader, writer):
        padded = GET.replace(b"\r\n\r\n", b"\r\nX-Pad: " + b"a" * 4000 + b"\r\n\r\n")
        for _ in range(20):
            writer.write(padded)
            await answer(reader)
        writer.write(b"GET /a HTTP/1.1\r\nHost: here\r\n" + (b"X-Pad: " + b"a" * 4000 + b"\r\n") * 9)
        assert b"HTTP/1.1 200" not in await rest(reader)
