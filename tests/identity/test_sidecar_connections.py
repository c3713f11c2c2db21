"""Who keeps a connection to a sidecar when more come than it has places for."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest
from proxy_kit import LOOPBACK, exchange, read_answer, request, upstream
from sidecar_kit import authorization, sidecar, users_token

from nodeattest_identity.addon.sidecar.settings import SidecarSettings
from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_serving.connection_slots import ConnectionSlots
from nodeattest_serving.settings import BindAddress

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
    settings = replace(USUAL, limits=ProxyLimits(connections=6))
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


async def test_a_place_is_free_again_when_an_authenticated_connection_ends() -> None:
    settings = replace(USUAL, limits=ProxyLimits(connections=1))
    async with upstream() as seen, sidecar(seen, settings) as running:
        reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
        writer.write(request("/", authorization(users_token())))
        assert (await read_answer(reader)).status == 200
        assert not await _answered(running.port)
        writer.close()
        async with asyncio.timeout(20):
            while not await _answered(running.port):
                await asyncio.sleep(0)


async def _answered(port: int) -> bool:
    """Whether a connection gets a place, and with it an answer."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        return (await exchange(port, request("/"))).status == 401
    return False


class _Transport(asyncio.Transport):
    ended = False

    def abort(self) -> None:
        self.ended = True


def test_the_client_with_the_most_replaceable_connections_loses_one_and_kept_ones_stay() -> None:
    slots = ConnectionSlots(4, 4)
    kept = [_Transport() for _ in range(3)]
    for one in kept:
        assert slots.take("a", one)
        slots.keep("a", one)
    other = _Transport()
    assert slots.take("b", other)
    last = _Transport()
    assert slots.take("a", last), "b has one that is replaceable, and a has none"
    assert other.ended
    assert not slots.take("c", _Transport()) or last.ended
    for one in kept:
        slots.leave("a", one)
        slots.leave("a", one)  # again, as a lost connection is reported twice
    assert not any(one.ended for one in kept)
    for _ in range(3):
        assert slots.take("d", _Transport())


def test_nobody_is_replaced_where_all_are_kept() -> None:
    slots = ConnectionSlots(2, 2)
    for client in ("a", "b"):
        one = _Transport()
        assert slots.take(client, one)
        slots.keep(client, one)
    assert not slots.take("c", _Transport())
    assert slots.turned_away == 1
