"""Requests that came together on one connection leave passes of the loop to every other connection between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import pytest
from aiohttp import web

from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_identity.proxy.refusals import Refusal, RefusalError
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_serving.health import HealthServer
from nodeattest_serving.listener import Listener
from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.settings import BindAddress, ConnectionLimits

LOOPBACK = "127.0.0.1"
TOGETHER = 50
FEW = 20
REQUEST = b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"


@dataclass
class Passes:
    """In which pass of the loop each request was handled."""

    now: int = 0
    handled: list[int] = field(default_factory=list[int])

    async def count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)

    def check(self) -> str:
        self.handled.append(self.now)
        return "not ready"

    async def respond(self, _request: web.BaseRequest) -> web.StreamResponse:
        self.handled.append(self.now)
        return web.Response()

    async def refuse(self, _request: web.BaseRequest) -> web.StreamResponse:
        self.handled.append(self.now)
        raise RefusalError(Refusal.PATH_NOT_ALLOWED, "expected another path")

    async def reply(self, _request: web.BaseRequest, _client: str) -> Reply:
        self.handled.append(self.now)
        return refusal(HTTPStatus.NOT_FOUND)


@asynccontextmanager
async def serving(name: str, passes: Passes) -> AsyncGenerator[int]:
    address = BindAddress(LOOPBACK, 0)
    if name == "proxy":
        server = ProxyServer(passes.respond, address, None, ProxyLimits())
    elif name == "refusing proxy":
        server = ProxyServer(passes.refuse, address, None, ProxyLimits())
    elif name == "health":
        server = HealthServer(address, {"passes": passes.check})
    else:
        server = Listener(passes.reply, address, None, ConnectionLimits(idle_seconds=30.0))
    await server.start()
    counting = asyncio.create_task(passes.count())
    try:
        yield server.port
    finally:
        counting.cancel()
        await server.stop()


@pytest.mark.parametrize("name", ["proxy", "listener", "health"])
async def test_of_many_requests_at_once_a_few_are_handled_in_a_pass_of_the_loop(name: str) -> None:
    passes = Passes()
    async with serving(name, passes) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(REQUEST * TOGETHER)
        for _ in range(TOGETHER):
            await reader.readuntil(b"HTTP/1.1 ")
        writer.close()
    assert len(passes.handled) == TOGETHER
    assert len(set(passes.handled)) >= TOGETHER // FEW


async def test_a_refusal_ends_a_connection_on_which_further_requests_wait() -> None:
    passes = Passes()
    async with serving("refusing proxy", passes) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(REQUEST * TOGETHER)
        await reader.read()
        writer.close()
    assert len(passes.handled) == 1


async def test_a_refusal_leaves_a_connection_open_whose_client_waits_for_answers() -> None:
    passes = Passes()
    async with serving("refusing proxy", passes) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        for _ in range(3):
            writer.write(REQUEST)
            await reader.readuntil(b'"code":')
        writer.close()
    assert len(passes.handled) == 3
