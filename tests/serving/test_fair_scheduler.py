"""Whoever sends many requests at once delays another client's by a few, not by all of them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from http import HTTPStatus
from pathlib import Path

import pytest
from aiohttp import web
from polling import until

from nodeattest_sandbox.pki import ClusterPki
from nodeattest_serving.bounded_server import UnauthenticatedLimits
from nodeattest_serving.fair_scheduler import FairScheduler, ScheduleKey
from nodeattest_serving.listener import Listener
from nodeattest_serving.pending_slots import PendingSlots
from nodeattest_serving.replies import Reply, refusal
from nodeattest_serving.settings import BindAddress, ConnectionLimits

LOOPBACK, NEIGHBOUR = "127.0.0.1", "127.0.0.2"
MANY = min(500, int(Path("/proc/sys/net/core/somaxconn").read_text(encoding="ascii")))
"""Connections that the kernel keeps for a server that asks for so many."""
REQUEST = b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_a_client_with_one_request_waits_for_one_of_each_other_client() -> None:
    scheduler, served = FairScheduler(MANY), list[str]()

    async def ask(client: str) -> None:
        await scheduler.wait(ScheduleKey(client))
        served.append(client)

    await asyncio.gather(*(ask(client) for client in ("a", "a", "a", "b", "b", "c")))
    assert served == ["a", "a", "b", "c", "a", "b"]


async def test_one_request_is_served_in_a_pass_of_the_loop() -> None:
    scheduler, passes, served = FairScheduler(MANY), 0, list[int]()

    async def ask(client: str) -> None:
        await scheduler.wait(ScheduleKey(client))
        served.append(passes)

    asking = [asyncio.create_task(ask(str(number % 3))) for number in range(9)]
    while not all(task.done() for task in asking):
        passes += 1
        await asyncio.sleep(0)
    assert len(set(served)) == len(asking)


async def test_of_too_many_that_wait_the_newest_of_the_client_with_most_loses_its_place() -> None:
    scheduler, told = FairScheduler(3), list[tuple[str, bool]]()

    async def ask(client: str) -> None:
        told.append((client, await scheduler.wait(ScheduleKey(client))))

    await asyncio.gather(*(ask(client) for client in ("a", "a", "a", "b", "c", "a")))
    assert sorted(told) == [("a", False), ("a", False), ("a", True), ("a", True), ("b", True), ("c", True)]


async def test_many_new_clients_at_once_take_no_place_of_one_that_waits() -> None:
    scheduler = FairScheduler(4)
    clients = ["served at once", "waits first", *(f"stranger {number}" for number in range(20))]
    served, waited, *others = await asyncio.gather(*(scheduler.wait(ScheduleKey(client)) for client in clients))
    assert served
    assert waited
    assert others.count(True) == 3


async def test_a_request_whose_connection_has_ended_is_not_scheduled() -> None:
    scheduler = FairScheduler(MANY)
    asking = [asyncio.create_task(scheduler.wait(ScheduleKey(client))) for client in ("a", "a", "b")]
    await asyncio.sleep(0)
    asking[0].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*asking[1:])


async def test_many_keys_of_one_group_delay_a_key_of_another_by_one() -> None:
    scheduler, served = FairScheduler(MANY), list[str]()

    async def ask(name: str, group: str) -> None:
        await scheduler.wait(ScheduleKey(name, group))
        served.append(name)

    many = [ask(f"address {number}", "addresses") for number in range(100)]
    await asyncio.gather(*many, ask("user", "users"))
    assert served.index("user") <= 3


async def test_many_keys_of_one_group_take_no_place_of_another() -> None:
    scheduler = FairScheduler(MANY)
    strangers = [scheduler.wait(ScheduleKey(str(number), "addresses")) for number in range(2 * MANY)]
    users = [scheduler.wait(ScheduleKey("user", "users")) for _ in range(3)]
    more = [scheduler.wait(ScheduleKey(f"late {number}", "addresses")) for number in range(MANY)]
    begun = await asyncio.gather(*strangers, *users, *more)
    assert all(begun[len(strangers) : len(strangers) + len(users)])
    assert begun.count(True) == MANY + 1


async def test_strangers_of_many_addresses_that_come_again_keep_nobody_out() -> None:
    """Each slot is held for less than the protected second all the time: its clock stands still."""
    most, waiting, more = 64, 256, 100
    slots = PendingSlots(most, 16, now=lambda: 0.0)
    scheduler = FairScheduler(waiting, delay=slots.delay)
    tasks = list[asyncio.Task[bool]]()

    async def come(client: str) -> bool:
        return await scheduler.wait(ScheduleKey(client)) and slots.take(client, _Silent())

    async def flood(addresses: int) -> None:
        for number in range(addresses):
            tasks.append(asyncio.create_task(come(str(number))))
            await asyncio.sleep(0)

    await flood(most + waiting + more)
    honest = asyncio.create_task(come("honest"))
    await flood(more)
    tasks.append(honest)
    try:
        assert honest.done()
        assert honest.result()
        assert sum(task.done() for task in tasks) > most + waiting
        assert any(not task.done() for task in tasks)  # few still wait for the delay
    finally:
        for task in tasks:
            task.cancel()


class _Silent(asyncio.Transport):
    """A connection that can be aborted."""

    def abort(self) -> None:
        pass


async def test_what_ends_while_it_waits_makes_room_at_once() -> None:
    scheduler = FairScheduler(2)
    first, second, third = (asyncio.create_task(scheduler.wait(ScheduleKey("a"))) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert await asyncio.gather(scheduler.wait(ScheduleKey("a")), first, third) == [True, True, True]


async def test_what_waits_for_a_slot_is_served_as_soon_as_one_is_free() -> None:
    delay = 3600.0
    scheduler = FairScheduler(MANY, delay=lambda: delay)
    waiting = asyncio.create_task(scheduler.wait(ScheduleKey("a")))
    await asyncio.sleep(0)
    assert not waiting.done()
    delay = 0.0
    scheduler.resume()
    async with asyncio.timeout(10):
        assert await waiting


async def test_requests_that_wait_are_limited_and_the_address_with_most_is_refused() -> None:
    """Over plain HTTP, in one pass of the loop; the honest client comes last."""
    asked, most, few = 1000, 768, 20

    async def reply(_request: web.BaseRequest, _client: str) -> Reply:
        return refusal(HTTPStatus.NOT_FOUND)

    limits = ConnectionLimits(connections=2 * asked, connections_of_client=asked)
    listener = Listener(reply, BindAddress(LOOPBACK, 0), None, limits)
    await listener.start()
    sockets = list[socket.socket]()
    try:
        for number in range(asked + 1):
            local = LOOPBACK if number == asked else NEIGHBOUR
            sockets.append(socket.create_connection((LOOPBACK, listener.port), source_address=(local, 0)))
            await asyncio.sleep(0)
        for each in sockets:  # no pass of the loop between them
            each.settimeout(0)
            each.send(REQUEST)
        async with asyncio.timeout(20):
            heads = [await asyncio.get_running_loop().sock_recv(each, 12) for each in sockets]
    finally:
        for each in sockets:
            each.close()
        await listener.stop()
    assert heads[-1] == b"HTTP/1.1 404"
    assert abs(heads.count(b"HTTP/1.1 503") - (asked - most)) < few


async def test_a_request_that_waits_is_forgotten_when_its_connection_ends() -> None:
    """Else a client that opens, asks and closes as fast as it can fills the memory of a server without TLS."""
    asked = 100
    handled = list[str]()

    async def reply(_request: web.BaseRequest, client: str) -> Reply:
        handled.append(client)
        return refusal(HTTPStatus.NOT_FOUND)

    listener = Listener(reply, BindAddress(LOOPBACK, 0), None, ConnectionLimits(connections_of_client=asked))
    await listener.start()
    sockets = list[socket.socket]()
    try:
        for _ in range(asked):
            sockets.append(socket.create_connection((LOOPBACK, listener.port)))
            await asyncio.sleep(0)
        for each in sockets:
            each.send(REQUEST)
        while not handled:
            await asyncio.sleep(0)
        for each in sockets:
            each.close()
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(LOOPBACK, listener.port, local_addr=(NEIGHBOUR, 0))
            writer.write(REQUEST)
            await reader.readline()
            writer.close()
    finally:
        await listener.stop()
    assert len(handled) < asked // 2


async def test_pipelined_requests_of_a_neighbour_delay_a_request_by_a_few() -> None:
    """The honest request is sent while a neighbour's three hundredth is handled, when hundreds wait."""
    connections, pipelined, few = 300, 4, 150
    handled = list[str]()
    honest = socket.socket()

    async def reply(_request: web.BaseRequest, client: str) -> Reply:
        handled.append(client)
        if len(handled) == connections:
            honest.sendall(REQUEST)
        return refusal(HTTPStatus.NOT_FOUND)

    limits = ConnectionLimits(connections=1024, connections_of_client=512, idle_seconds=30.0)
    listener = Listener(reply, BindAddress(LOOPBACK, 0), None, limits)
    await listener.start()
    neighbours = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
    try:
        async with asyncio.timeout(20):
            honest.settimeout(0)
            await asyncio.get_running_loop().sock_connect(honest, (LOOPBACK, listener.port))
            for _ in range(connections):
                neighbours.append(await asyncio.open_connection(LOOPBACK, listener.port, local_addr=(NEIGHBOUR, 0)))
            for _, writer in neighbours:
                writer.write(REQUEST * pipelined)
            await asyncio.get_running_loop().sock_recv(honest, 1)
    finally:
        honest.close()
        for _, writer in neighbours:
            writer.transport.abort()
        await listener.stop()
    assert handled.index(LOOPBACK) - connections < few


async def test_connections_that_come_while_the_loop_is_busy_are_kept_for_it() -> None:
    """The loop does not run meanwhile: all wait in the kernel, and a connection that it has no room for times out."""

    async def reply(_request: web.BaseRequest, _client: str) -> Reply:
        return refusal(HTTPStatus.NOT_FOUND)

    listener = Listener(reply, BindAddress(LOOPBACK, 0), None, ConnectionLimits())
    await listener.start()
    connections = [socket.socket() for _ in range(MANY)]
    try:
        for each in connections:
            each.settimeout(0.5)
            each.connect((LOOPBACK, listener.port))
    finally:
        for each in connections:
            each.close()
        await listener.stop()


async def test_a_connection_that_lost_its_slot_before_it_is_scheduled_begins_no_handshake(tmp_path: Path) -> None:
    async def reply(_request: web.BaseRequest, _client: str) -> Reply:
        return refusal(HTTPStatus.NOT_FOUND)

    pki = ClusterPki.make(tmp_path, "serving")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki.server_certificate, pki.server_key)
    limits = ConnectionLimits(connections=2, connections_of_client=2, replaces_oldest=True)
    listener = Listener(reply, BindAddress(LOOPBACK, 0), tls, limits)
    await listener.start()
    connections = [socket.create_connection((LOOPBACK, listener.port)) for _ in range(50)]
    try:
        await until(lambda: listener.turned_away == len(connections) - 2)
        for _ in connections:
            await asyncio.sleep(0)
        assert sum("BoundedServer._handshake" in str(task.get_coro()) for task in asyncio.all_tasks()) == 2
    finally:
        for each in connections:
            each.close()
        await listener.stop()


async def test_a_client_that_opens_too_many_at_once_loses_none_that_it_has(tmp_path: Path) -> None:
    """All come in one pass of the loop, before the first takes its slot."""

    async def reply(_request: web.BaseRequest, _client: str) -> Reply:
        return refusal(HTTPStatus.NOT_FOUND)

    pki = ClusterPki.make(tmp_path, "serving")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki.server_certificate, pki.server_key)
    listener = Listener(reply, BindAddress(LOOPBACK, 0), tls, ConnectionLimits(connections=20, connections_of_client=2))
    await listener.start()
    first, second, *others = [socket.create_connection((LOOPBACK, listener.port)) for _ in range(10)]
    try:
        await until(lambda: listener.turned_away == len(others))
        for each in (first, second, *others):
            each.settimeout(0)
        for each in others:
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(_end_of(each), 10)
        for each in (first, second):
            with pytest.raises(BlockingIOError):
                each.recv(1)
    finally:
        for each in (first, second, *others):
            each.close()
        await listener.stop()


async def _end_of(connection: socket.socket) -> None:
    if not await asyncio.get_running_loop().sock_recv(connection, 1):
        raise ConnectionResetError


async def test_neighbours_that_only_hold_connections_cost_a_client_none_of_its_handshakes(tmp_path: Path) -> None:
    """Of more addresses than there are slots, one connection each: whoever has two has most."""

    async def reply(_request: web.BaseRequest, _client: str) -> Reply:
        return refusal(HTTPStatus.NOT_FOUND)

    slots, handshakes = 64, 8
    pki = ClusterPki.make(tmp_path, "serving")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki.server_certificate, pki.server_key)
    limits = UnauthenticatedLimits(is_unauthenticated=lambda _: True, connections=slots, connections_of_client=16)
    listener = Listener(reply, BindAddress(LOOPBACK, 0), tls, ConnectionLimits(), unauthenticated=limits)
    await listener.start()
    where = LOOPBACK, listener.port
    silent = [socket.create_connection(where, source_address=(f"127.0.0.{2 + number}", 0)) for number in range(70)]
    try:
        await until(lambda: listener.turned_away == len(silent) - slots)
        trust = ssl.create_default_context(cafile=pki.ca_certificate)
        async with asyncio.timeout(20):
            opening = [asyncio.open_connection(*where, ssl=trust) for _ in range(handshakes)]
            opened = await asyncio.gather(*opening)
            for _, writer in opened:
                writer.write(REQUEST)
            heads = [await reader.readline() for reader, _ in opened]
        assert all(b"404" in head for head in heads)
    finally:
        for each in silent:
            each.close()
        await listener.stop()
