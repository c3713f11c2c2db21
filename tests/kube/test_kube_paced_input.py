"""What a connection's bytes cost is charged before anybody sees an answer in them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
from polling import until
from scripted import Server, server_tls

from nodeattest_kube.client import ApiClient, Unreachable
from nodeattest_kube.http1 import HttpConnection
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.paced_input import READING, PacedInput

MILLISECOND = 1_000_000
ONE = MILLISECOND + READING
RECORDS = 100_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Decrypts(asyncio.BufferedProtocol):
    """Takes a millisecond for whatever comes, and shows none of it to anybody."""

    def __init__(self) -> None:
        self.now = self.reads = 0
        self.lost = False

    def clock(self) -> int:
        return self.now

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.reads += 1
        self.now += nbytes and MILLISECOND

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.lost = True


class Socket(asyncio.Transport):
    """The transport of a socket on which there is always something to read."""

    def __init__(self, protocol: Decrypts) -> None:
        super().__init__()
        self._protocol: asyncio.BaseProtocol = protocol
        self.reads, self.closing = True, False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def receive(self) -> None:
        """Read for as long as it may."""
        while self.reads:
            cast("asyncio.BufferedProtocol", self._protocol).buffer_updated(16_384)


class Bill:
    """A pace that lets nobody pass before it is told to."""

    def __init__(self) -> None:
        self.costs: list[int] = []
        self.paid = asyncio.Event()

    async def __call__(self, cost: int) -> None:
        self.costs.append(cost)
        await self.paid.wait()


async def test_while_what_was_received_is_not_paid_nothing_more_is_received() -> None:
    inner, bill = Decrypts(), Bill()
    socket = Socket(inner)
    paced = PacedInput(socket, HttpConnection(), bill, clock=inner.clock)
    socket.receive()
    assert inner.reads == 3  # 2.5 ms are owed at most
    await asyncio.sleep(0)
    assert (bill.costs, socket.reads) == ([3 * ONE], False)
    bill.paid.set()
    while not socket.reads:
        await asyncio.sleep(0)
    socket.receive()
    await asyncio.sleep(0)
    assert bill.costs == [3 * ONE] * 2
    paced.connection_lost(None)
    assert inner.lost


async def test_what_a_connection_cost_that_ended_at_once_is_paid() -> None:
    inner, bill = Decrypts(), Bill()
    socket = Socket(inner)
    paced = PacedInput(socket, HttpConnection(), bill, clock=inner.clock)
    paced.buffer_updated(16_384)
    socket.closing = True
    paced.connection_lost(None)
    await asyncio.sleep(0)
    assert bill.costs == [ONE]


async def test_who_has_enough_and_who_owes_stop_the_socket_and_both_have_to_let_it_go_on() -> None:
    class Listens(HttpConnection):
        def read_by(self, read_on: Callable[[], None]) -> None:
            self.read_on = read_on

    def tells(*, has_enough: bool) -> None:
        connection.has_enough = has_enough
        connection.read_on()

    inner, bill, connection = Decrypts(), Bill(), Listens()
    socket = Socket(inner)
    PacedInput(socket, connection, bill, clock=inner.clock)
    socket.receive()
    tells(has_enough=True)
    bill.paid.set()
    for _turn in range(5):
        await asyncio.sleep(0)
    assert not socket.reads, "paid, but there is enough"
    tells(has_enough=False)
    assert socket.reads
    bill.paid.clear()
    tells(has_enough=True)
    tells(has_enough=False)
    socket.receive()
    tells(has_enough=False)
    assert not socket.reads, "not paid"


@asynccontextmanager
async def one_byte_records(folder: Path, body: bytes) -> AsyncGenerator[Server]:
    """Run a server that answers in TLS records of one byte each, many in each packet."""
    authority, context = server_tls(folder, "127.0.0.1")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)

        async def step(call: Callable[[], object]) -> None:
            while True:
                try:
                    call()
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    if not (received := await reader.read(65_536)):
                        raise EOFError from None
                    incoming.write(received)
                else:
                    break

        with suppress(EOFError):
            await step(tls.do_handshake)
            await step(lambda: tls.read(65_536))
            tls.write(HEAD % len(body))
            for byte in body:
                tls.write(bytes([byte]))
            writer.write(outgoing.read())
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        yield Server(f"https://127.0.0.1:{port}", authority.pem, authority)


async def test_records_of_one_byte_are_charged_by_what_they_take(tmp_path: Path) -> None:
    bill = Bill()
    bill.paid.set()
    body = b'{"a":"%s"}' % (b"b" * RECORDS)
    async with (
        one_byte_records(tmp_path, body) as server,
        ApiClient.from_kubeconfig(server.kubeconfig()) as client,
    ):
        client.limit_reading(bill)
        assert await client.get("/x") == {"a": "b" * RECORDS}
    assert sum(bill.costs) >= 200 * RECORDS, "no machine decrypts a record in 200 ns"


@pytest.mark.parametrize("paced", [True, False])
async def test_a_server_name_that_is_none_leaves_no_socket_open(tmp_path: Path, paced: bool) -> None:
    def sockets() -> int:
        return len([one for one in Path("/proc/self/fd").iterdir() if one.is_socket()])

    bill = Bill()
    bill.paid.set()
    async with one_byte_records(tmp_path, b"{}") as server:
        name: JsonObject = {"tls-server-name": "a" * 64 + ".example"}
        async with ApiClient.from_kubeconfig(server.kubeconfig(name)) as client:
            if paced:
                client.limit_reading(bill)
            before = sockets()
            for _ in range(10):
                with pytest.raises(Unreachable):
                    await client.get("/x")
            await until(lambda: sockets() <= before, "the end of the sockets")
