"""WebSockets pass, end with the token, and nothing else is upgraded."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
from polling import until
from proxy_kit import (
    LOOPBACK,
    Running,
    Seen,
    authorization,
    exchange,
    fixed,
    read_answer,
    request,
    sidecar,
    upstream,
    users_token,
)
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from nodeattest_identity.addon.sidecar.service import SidecarSettings
from nodeattest_identity.proxy.server import ProxyLimits
from nodeattest_serving.bounded_server import BindAddress

Connected = tuple[Running, ClientConnection]
KEY = base64.b64encode(b"0123456789abcdef").decode()
ACCEPT = base64.b64encode(
    hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
).decode()
HANDSHAKE = ("Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13")
SWITCHING = (
    f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
).encode()


@asynccontextmanager
async def talking(handler: Callable[[ServerConnection], Awaitable[None]], token: bytes) -> AsyncGenerator[Connected]:
    """Connect a WebSocket client to a server of the handler, through a sidecar."""
    headers = {"Authorization": f"Bearer {token.decode()}", "X-Authenticated-User": "root"}
    chat = [Subprotocol("chat")]
    async with serve(handler, LOOPBACK, 0, subprotocols=chat, max_size=None) as server:
        seen = Seen(port=next(iter(server.sockets)).getsockname()[1])
        async with sidecar(seen) as running:
            url = f"ws://{LOOPBACK}:{running.port}/ws"
            options = {"subprotocols": chat, "additional_headers": headers, "max_size": None, "proxy": None}
            async with connect(url, **options) as client:  # type: ignore[arg-type]
                yield running, client


async def test_frames_pass_both_ways_under_the_callers_name() -> None:
    told: list[str] = []

    async def echo(connection: ServerConnection) -> None:
        assert connection.request is not None
        told.extend(connection.request.headers.get_all("X-Authenticated-User"))
        told.extend(connection.request.headers.get_all("Authorization"))
        async for message in connection:
            await connection.send(message)

    async with talking(echo, users_token()) as (_, client):
        assert client.subprotocol == "chat"
        for message in ("hello", b"\x00" * 3_000_000, "x" * 200_000):
            await client.send(message)
            assert await client.recv() == message
    assert told == ["alice"]


async def test_a_websocket_ends_when_the_token_does() -> None:
    ended = asyncio.Event()

    async def listen(connection: ServerConnection) -> None:
        try:
            await connection.recv()
        finally:
            ended.set()

    async with talking(listen, users_token(lasts=4)) as (running, client):
        with pytest.raises(ConnectionClosed):
            await client.recv()
        assert client.close_code == 1006, "cut off: no close frame was sent in anybody's name"
        await asyncio.wait_for(ended.wait(), 60)
        await until(lambda: running.service.in_flight == 0)


async def test_who_reads_slowly_is_waited_for_and_gets_everything() -> None:
    size = 4 << 20

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHING)
        for _ in range(size >> 16):
            writer.write(b"x" * (1 << 16))
            await writer.drain()
        await reader.read()

    async with upstream(script) as seen, sidecar(seen) as running:
        reader, writer = await asyncio.open_connection(LOOPBACK, running.port, limit=1 << 12)
        writer.write(request("/", authorization(users_token()), *HANDSHAKE))
        assert (await read_answer(reader)).status == 101
        await asyncio.sleep(0.05)  # the pipe fills up
        got = 0
        while got < size:
            piece = await reader.read(1 << 15)
            assert piece
            got += len(piece)
        writer.close()


async def test_a_websocket_whose_client_does_not_read_ends_at_both_sides() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHING)
        while True:
            writer.write(b"x" * (1 << 16))
            await writer.drain()

    address = BindAddress(LOOPBACK, 0)
    settings = SidecarSettings(address=address, upstream=address, limits=ProxyLimits(forwarded_unread_seconds=0.1))
    async with upstream(endless) as seen, sidecar(seen, settings) as running:
        reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
        writer.write(request("/", authorization(users_token()), *HANDSHAKE))
        assert (await read_answer(reader)).status == 101
        cast("asyncio.Transport", writer.transport).pause_reading()
        await until(lambda: (seen.closed, running.service.in_flight) == (1, 0))
        writer.transport.abort()


async def test_a_connection_that_was_asked_to_upgrade_is_used_for_nothing_else() -> None:
    """CVE-2018-1002105: what is left on it would be the next caller's answer."""
    script = fixed(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
    async with upstream(script) as seen, sidecar(seen) as running:
        for user, lines in (("alice", HANDSHAKE), ("bob", ())):
            answer = await exchange(running.port, request("/", authorization(users_token(user)), *lines))
            assert (answer.status, answer.body) == (403, b"no")
        assert len(seen.connections) == 2


async def test_what_is_no_get_of_http_1_1_is_no_upgrade_and_an_answer_to_none_is_none() -> None:
    async with upstream(fixed(SWITCHING)) as seen, sidecar(seen) as running:
        given = authorization(users_token())
        post, get = (request("/", given, *HANDSHAKE, method=method) for method in ("POST", "GET"))
        for each in (post, get.replace(b"HTTP/1.1", b"HTTP/1.0", 1)):
            assert (await exchange(running.port, each)).status == 400
        assert seen.connections == []
        assert (await exchange(running.port, request("/", given))).status == 502


async def test_when_the_client_goes_the_add_ons_side_ends_too() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHING)
        await reader.read()

    async with upstream(script) as seen, sidecar(seen) as running:
        reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
        writer.write(request("/", authorization(users_token()), *HANDSHAKE) + b"frames that came early")
        assert (await read_answer(reader)).status == 101
        await until(lambda: b"frames that came early" in seen.bytes)
        writer.transport.abort()
        await until(lambda: seen.closed == 1)
        await until(lambda: running.service.in_flight == 0)
