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
from nodeattest_serving.connection_slots import ConnectionSlots

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


class _Transport(asyncio.Transport):
    ended = False

    def abort(self) -> None:
        self.ended = True


def _kept(slots: ConnectionSlots, client: str, owner: str, *, busy: bool = False) -> _Transport:
    """Open a connection on which a caller asks, or has asked."""
    one = _Transport()
    assert slots.take(client, one)
    slots.keep(one, owner)
    if not busy:
        slots.request_ended(one, authenticated=True)
    return one


def test_the_client_with_the_most_replaceable_connections_loses_one_and_kept_ones_stay() -> None:
    slots = ConnectionSlots(4, 4)
    kept = [_kept(slots, "a", owner, busy=True) for owner in "ijk"]
    other = _Transport()
    assert slots.take("b", other)
    last = _Transport()
    assert slots.take("a", last), "b has one that is replaceable, and a has none"
    assert other.ended
    assert slots.take("c", _Transport())
    assert last.ended
    for one in kept:
        slots.leave(one)
        slots.leave(one)  # again, as a lost connection is reported twice
    assert not any(one.ended for one in kept)
    for _ in range(3):
        assert slots.take("d", _Transport())


def test_idle_connections_of_one_owner_over_a_quarter_of_all_are_replaced_like_unauthenticated_ones() -> None:
    slots = ConnectionSlots(8, 8, replaces_oldest=True)
    first, *rest = [_kept(slots, "a", "alice") for _ in range(3)]
    others = [_kept(slots, "a", owner) for owner in ("bob", "carol") * 2 + ("dave",)]
    stranger = _Transport()
    assert slots.take("b", stranger)
    assert first.ended
    assert slots.take("b", _Transport())
    assert stranger.ended, "one unauthenticated connection replaces another, before any that is kept"
    assert not any(one.ended for one in (*rest, *others))


def test_a_connection_is_kept_no_longer_once_a_request_on_it_is_not_authenticated() -> None:
    slots = ConnectionSlots(2, 2)
    one, other = _kept(slots, "a", "alice"), _kept(slots, "a", "bob")
    slots.request_ended(other, authenticated=False)
    assert slots.take("b", _Transport())
    assert (one.ended, other.ended) == (False, True)
    slots.leave(other)
    assert slots.take("b", _Transport()), "an idle one"
    assert one.ended
