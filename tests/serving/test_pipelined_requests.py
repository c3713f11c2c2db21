"""A request that comes before the answer to the one before it ends its connection after that answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import pytest
from aiohttp import web
from polling import until

from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_identity.proxy.refusals import Refusal, RefusalError
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_serving.health import HealthServer
from nodeattest_serving.listener import Listener
from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.settings import BindAddress, ConnectionLimits

LOOPBACK = "127.0.0.1"
TOGETHER = 50
REQUEST = b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /readyz HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"
UPGRADE = b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
STREAMED = 1 << 20
"""Bytes of a long answer: more than a kernel takes for a client that reads little."""


@dataclass
class Handlers:
    """Count requests and answer them, some only when they may."""

    handled: int = 0
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self) -> str:
        self.handled += 1
        return "not ready"

    async def respond(self, _request: web.BaseRequest) -> web.StreamResponse:
        self.handled += 1
        await self.may_answer.wait()
        return web.Response()

    async def refuse(self, _request: web.BaseRequest) -> web.StreamResponse:
        self.handled += 1
        raise RefusalError(Refusal.PATH_NOT_ALLOWED, "expected another path")

    async def stream(self, request: web.BaseRequest) -> web.StreamResponse:
        self.handled += 1
        response = web.StreamResponse()
        response.content_length = STREAMED
        await response.prepare(request)
        await response.write(b"a" * STREAMED)
        return response

    async def reply(self, _request: web.BaseRequest, _client: str) -> Reply:
        self.handled += 1
        await self.may_answer.wait()
        return refusal(HTTPStatus.NOT_FOUND)


@asynccontextmanager
async def serving(name: str, handlers: Handlers) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Run a server, and connect to it."""
    address = BindAddress(LOOPBACK, 0)
    proxied = {"proxy": handlers.respond, "refusing proxy": handlers.refuse, "streaming proxy": handlers.stream}
    if name in proxied:
        server = ProxyServer(proxied[name], address, None, ProxyLimits())
    elif name == "health":
        server = HealthServer(address, {"one": handlers.check})
    else:
        server = Listener(handlers.reply, address, None, ConnectionLimits(idle_seconds=30.0), most_body=1 << 16)
    await server.start()
    try:
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(LOOPBACK, server.port)
            yield reader, writer
            writer.transport.abort()
    finally:
        await server.stop()


@pytest.mark.parametrize("name", ["proxy", "refusing proxy", "listener", "health"])
@pytest.mark.parametrize("first", [REQUEST, POST + b"abcde"], ids=["GET", "POST"])
async def test_of_requests_that_came_together_the_first_is_answered_and_ends_the_connection(
    name: str, first: bytes
) -> None:
    handlers = Handlers()
    handlers.may_answer.set()
    async with serving(name, handlers) as (reader, writer):
        writer.write(first + REQUEST * TOGETHER)
        answers = await reader.read()
    assert answers.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answers.lower()
    assert handlers.handled <= 1  # health refuses another method than GET before it checks


@pytest.mark.parametrize("name", ["proxy", "listener"])
async def test_a_request_that_comes_while_one_is_handled_is_dropped_and_ends_the_connection(name: str) -> None:
    handlers = Handlers()
    async with serving(name, handlers) as (reader, writer):
        writer.write(REQUEST)
        await until(lambda: handlers.handled == 1)
        writer.write(REQUEST)
        await writer.drain()
        for _ in range(TOGETHER):  # passes in which the server reads it
            await asyncio.sleep(0)
        handlers.may_answer.set()
        answers = await reader.read()
    assert answers.count(b"HTTP/1.1 ") == 1
    assert handlers.handled == 1


@pytest.mark.parametrize("name", ["proxy", "refusing proxy", "streaming proxy", "listener", "health"])
async def test_a_client_that_waits_for_each_answer_keeps_its_connection(name: str) -> None:
    handlers = Handlers()
    handlers.may_answer.set()
    async with serving(name, handlers) as (reader, writer):
        for _ in range(5):
            writer.write(REQUEST)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b"connection: close" not in head
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    assert handlers.handled == 5


async def test_a_request_that_comes_once_the_answer_has_begun_is_answered() -> None:
    """Its client may have read all of the answer before the server knows that it is written."""
    handlers = Handlers()
    async with serving("streaming proxy", handlers) as (reader, writer):
        writer.write(REQUEST)
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(REQUEST)
            await writer.drain()
            await reader.readexactly(STREAMED)
    assert handlers.handled >= 3


async def test_a_request_behind_a_declined_upgrade_ends_the_connection() -> None:
    handlers = Handlers()
    async with serving("refusing proxy", handlers) as (reader, writer):
        writer.write(UPGRADE + REQUEST * TOGETHER)
        answers = await reader.read()
    assert answers.count(b"HTTP/1.1 ") == 1
    assert handlers.handled == 1


@pytest.mark.parametrize("name", ["proxy", "refusing proxy", "listener", "health"])
@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
async def test_a_declined_upgrade_ends_the_connection(name: str, protocol: bytes) -> None:
    handlers = Handlers()
    handlers.may_answer.set()
    async with serving(name, handlers) as (reader, writer):
        writer.write(UPGRADE.replace(b"websocket", protocol) + REQUEST)
        answers = await reader.read()
    assert answers.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answers.lower()
    assert handlers.handled == 1


async def test_bytes_behind_a_pipelined_request_are_not_read_without_end() -> None:
    """What the server does not read fills the kernel's buffers, and then the client's."""
    handlers = Handlers()
    async with serving("proxy", handlers) as (_, writer):
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(REQUEST * 2 + b"a" * (64 << 20))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 1)


async def test_a_pipelined_request_is_logged_at_level_debug(caplog: pytest.LogCaptureFixture) -> None:
    handlers = Handlers()
    handlers.may_answer.set()
    with caplog.at_level(logging.DEBUG, "nodeattest_serving"):
        async with serving("listener", handlers) as (reader, writer):
            writer.write(REQUEST * TOGETHER)
            await reader.read()
    lines = [record for record in caplog.records if "before the answer" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.DEBUG]
