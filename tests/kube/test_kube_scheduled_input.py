"""What a connection receives is decrypted in its cluster's turns."""

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
from nodeattest_kube.input_scheduler import ClusterInput, InputScheduler
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.scheduled_input import ScheduledInput

READ = 16_384
RECORDS = 100_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Decrypts(asyncio.BufferedProtocol):
    """Counts what comes, and shows none of it to anybody."""

    def __init__(self) -> None:
        self.reads = 0
        self.lost = False

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        assert nbytes == READ
        self.reads += 1

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

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def receive(self) -> None:
        """Read for as long as it may."""
        while self.reads:
            cast("asyncio.BufferedProtocol", self._protocol).buffer_updated(READ)


class Gate(ClusterInput):
    """Counts turns, and grants each when it is told to."""

    def __init__(self, *, is_open: bool = False) -> None:
        super().__init__(InputScheduler(), ("a", "a/c"))
        self.turns: list[asyncio.Future[None]] = []
        self._is_open = is_open

    def handle_at_once(self, piece: Callable[[], None]) -> bool:
        return False

    def turn(self) -> asyncio.Future[None]:
        turn = asyncio.get_running_loop().create_future()
        self.turns.append(turn)
        if self._is_open:
            turn.set_result(None)
        return turn


async def test_before_its_turn_nothing_is_decrypted_and_nothing_more_received() -> None:
    inner, gate = Decrypts(), Gate()
    socket = Socket(inner)
    scheduled = ScheduledInput(socket, HttpConnection(), gate)
    for read in range(3):
        socket.receive()
        await asyncio.sleep(0)
        assert (inner.reads, len(gate.turns), socket.reads) == (read, read + 1, False)
        gate.turns[-1].set_result(None)
        await asyncio.sleep(0)
        assert (inner.reads, socket.reads) == (read + 1, True)
    scheduled.connection_lost(None)
    assert inner.lost


async def test_bytes_of_a_connection_that_ended_before_its_turn_are_dropped() -> None:
    inner, gate = Decrypts(), Gate()
    socket = Socket(inner)
    scheduled = ScheduledInput(socket, HttpConnection(), gate)
    socket.receive()
    socket.closing = True
    scheduled.connection_lost(None)
    gate.turns[0].set_result(None)
    await asyncio.sleep(0)
    assert (inner.reads, inner.lost) == (0, True)


async def test_a_connection_that_has_enough_and_one_that_waits_for_its_turn_stop_the_socket() -> None:
    class Listens(HttpConnection):
        def read_by(self, read_on: Callable[[], None]) -> None:
            self.read_on = read_on

    def tells(*, has_enough: bool) -> None:
        connection.has_enough = has_enough
        connection.read_on()

    inner, gate, connection = Decrypts(), Gate(), Listens()
    socket = Socket(inner)
    ScheduledInput(socket, connection, gate)
    socket.receive()
    tells(has_enough=True)
    gate.turns[-1].set_result(None)
    await asyncio.sleep(0)
    assert not socket.reads, "decrypted, but there is enough"
    tells(has_enough=False)
    assert socket.reads
    socket.receive()
    tells(has_enough=True)
    tells(has_enough=False)
    assert not socket.reads, "its turn has not come"


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


async def test_records_of_one_byte_take_a_turn_for_each_16_kibibytes_of_them(tmp_path: Path) -> None:
    gate = Gate(is_open=True)
    body = b'{"a":"%s"}' % (b"b" * RECORDS)
    async with (
        one_byte_records(tmp_path, body) as server,
        ApiClient.from_kubeconfig(server.kubeconfig()) as client,
    ):
        client.schedule_input(gate)
        assert await client.get("/x") == {"a": "b" * RECORDS}
    smallest = 5 + 1 + 16
    """Bytes of a record of one byte: header, text, tag (RFC 8446 §5.2)."""
    assert len(gate.turns) >= smallest * RECORDS // READ


@pytest.mark.parametrize("scheduled", [True, False])
async def test_an_invalid_server_name_leaves_no_socket_open(tmp_path: Path, scheduled: bool) -> None:
    def sockets() -> int:
        return len([one for one in Path("/proc/self/fd").iterdir() if one.is_socket()])

    async with one_byte_records(tmp_path, b"{}") as server:
        name: JsonObject = {"tls-server-name": "a" * 64 + ".example"}
        async with ApiClient.from_kubeconfig(server.kubeconfig(name)) as client:
            if scheduled:
                client.schedule_input(Gate(is_open=True))
            before = sockets()
            for _ in range(10):
                with pytest.raises(Unreachable):
                    await client.get("/x")
            await until(lambda: sockets() <= before, "the end of the sockets")
