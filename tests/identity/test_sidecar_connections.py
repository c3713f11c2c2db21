"""Who keeps a connection to a sidecar when more come than it has places for."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest
from proxy_kit import LOOPBACK, exchange, read_answer, request, upstream
from sidecar_kit import authorization, sidecar, users_token

from nodeattest_identity.addon.sidecar.service import SidecarSettings
from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_serving.bounded_server import BindAddress

USUAL = SidecarSettings(address=BindAddress(LOOPBACK, 0), upstream=BindAddress(LOOPBACK, 1))
ELSEWHERE = "127.0.0.2"
"""Another client on this machine."""


async def _streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begin an answer, and end it when the test says so by closing."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
    await reader.read()


@pytest.mark.parametrize("address", [LOOPBACK, ELSEWHERE], ids=["the same client", "another client"])
async def test_unauthenticated_connections_end_no_authenticated_one(address: str) -> None:
    settings = replace(USUAL, limits=ProxyLimits(connections=16))
    alice = authorization(users_token())
    async with upstream(_streams) as seen, sidecar(seen, settings) as running, AsyncExitStack() as stack:
        live: list[asyncio.StreamReader] = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
            stack.callback(writer.close)
            writer.write(request("/", alice))
            await reader.readuntil(b"2\r\nhi\r\n")
            live.append(reader)
        for _ in range(40):
            _, writer = await asyncio.open_connection(LOOPBACK, running.port, local_addr=(address, 0))
            stack.callback(writer.close)
            with suppress(ConnectionError):
                writer.write(b"GET / HT")
                await writer.drain()
        if address == ELSEWHERE:  # they lose their places to each other and to whoever comes from elsewhere
            assert (await exchange(running.port, request("/"))).status == 401
        assert [reader.at_eof() for reader in live] == [False] * 4
        assert running.service.in_flight == 4


@pytest.mark.parametrize("given", [users_token(), b"rubbish"], ids=["good tokens", "then bad tokens"])
@pytest.mark.parametrize("address", [LOOPBACK, ELSEWHERE], ids=["the same client", "another client"])
async def test_one_callers_idle_connections_keep_nobody_out(address: str, given: bytes) -> None:
    settings = replace(USUAL, limits=ProxyLimits(connections=6))
    async with upstream() as seen, sidecar(seen, settings) as running, AsyncExitStack() as stack:
        for _ in range(6):
            reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
            stack.callback(writer.close)
            for each in (users_token(), given):
                writer.write(request("/", authorization(each)))
                assert (await read_answer(reader)).status == (401 if each == b"rubbish" else 200)
        for _ in range(3):
            reader, writer = await asyncio.open_connection(LOOPBACK, running.port, local_addr=(address, 0))
            stack.callback(writer.close)
            writer.write(request("/", authorization(users_token("bob"))))
            assert (await read_answer(reader)).status == 200


async def test_two_callers_streams_take_at_most_half_of_all_connections() -> None:
    settings = replace(USUAL, limits=ProxyLimits(connections=8))
    async with upstream(_streams) as seen, sidecar(seen, settings) as running, AsyncExitStack() as stack:
        live: list[asyncio.StreamReader] = []
        taken: Counter[str] = Counter()
        for user in ("alice", "bob") * 5 + ("carol", "dave") * 2:
            reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
            stack.callback(writer.close)
            writer.write(request("/", authorization(users_token(user))))
            if taken[user] < 2:
                taken[user] += 1
                await reader.readuntil(b"2\r\nhi\r\n")
                live.append(reader)
        assert running.service.in_flight == 8
        assert [reader.at_eof() for reader in live] == [False] * 8
