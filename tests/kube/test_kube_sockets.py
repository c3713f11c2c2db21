"""Connections to API servers: what a peer may send before it answers, turns for the rest, and what is never sent."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web
from polling import until
from scripted import Gate, Server, answers, cut, kubeconfig, sending, server_tls, serving, thing

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Unreachable
from nodeattest_kube.lookups import AddressInfos, Lookups
from nodeattest_parsing.values import JsonObject

READ: Final = 16_384
BEFORE_ANSWER: Final = 65_536
RECORDS: Final = 100_000
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
PHASES: Final = 4
"""Two attempts, each with a handshake or a proxy before its answer."""
ENDLESS: Final = 100 << 20
"""Bytes after which a test gives a client up that takes everything."""


async def rest() -> None:
    """Let everything that is ready happen."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("closes", [False, True])
async def test_a_piece_of_an_answer_is_decrypted_in_each_turn_and_none_before(tmp_path: Path, *, closes: bool) -> None:
    gate, big = Gate(), thing("a", 1, text="b" * (1 << 20))
    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        client.schedule_input(gate)
        server.script = [answers(big, Connection="close" if closes else "keep-alive")]
        getting, granted = asyncio.create_task(client.get("/x")), 0
        while not getting.done():
            await until(lambda: len(gate.turns) > granted or getting.done())
            await rest()
            assert len(gate.turns) <= granted + 1, "one at a time"
            for grant in gate.turns[granted:]:
                grant()
                granted += 1
        assert await getting == big
    assert granted >= (1 << 20) // (2 * READ) - 3, "its head comes with a piece, and the last turn parses"


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


async def test_records_of_one_byte_take_a_turn_for_each_32_kibibytes_of_them(tmp_path: Path) -> None:
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
    assert len(gate.turns) >= smallest * RECORDS // (2 * READ)


@pytest.mark.parametrize(
    "piece",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        b"HTTP/1.1 200 " + b"K" * 100_000,
    ],
    ids=lambda piece: repr(piece[:40]),
)
async def test_what_never_becomes_an_answer_is_charged_and_ends(tmp_path: Path, piece: bytes) -> None:
    async def send(writer: asyncio.StreamWriter) -> None:
        for _ in range(ENDLESS // len(piece)):
            writer.write(piece)
            await writer.drain()

    authority, context = server_tls(tmp_path, "127.0.0.1")
    async with sending(send, context, authority) as server:
        await refuses_to_take_it_all(server.kubeconfig())


async def test_what_a_proxy_sends_before_it_connects_us_is_charged_and_ends() -> None:
    async def send(writer: asyncio.StreamWriter) -> None:
        for _ in range(ENDLESS // 1000):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 40)
            await writer.drain()

    async with sending(send) as proxy:
        url = proxy.url.replace("https", "http")
        await refuses_to_take_it_all(kubeconfig({"server": "https://api.example.test", "proxy-url": url}, {}))


async def refuses_to_take_it_all(config: bytes) -> None:
    gate = Gate()
    async with ApiClient.from_kubeconfig(config, request_timeout=60.0) as client:
        client.schedule_input(gate)
        getting = asyncio.create_task(client.get("/x"))
        await until(lambda: gate.turns or getting.done())
        await rest()
        assert not getting.done(), "nobody tries again before the turn"
        gate.turns[0]()
        with pytest.raises(Unreachable) as refused:
            await getting
    assert "time limit" not in str(refused.value)
    assert 0.001 < gate.charged <= 2 * PHASES * BEFORE_ANSWER * 0.25e-6


async def test_a_connection_that_was_closed_while_it_was_kept_costs_a_read_nothing_and_a_write_is_not_repeated(
    server: Server, client: ApiClient
) -> None:
    async def cuts(request: web.Request) -> web.StreamResponse:
        await cut(request)
        return web.Response()

    good = answers(thing("a", 1))
    for ask, seen in (
        (lambda: client.get("/x"), 2),
        (lambda: client.replace("/x", {}), 2),
        (lambda: client.delete("/x"), 2),
        (lambda: client.create("/x", {}), 1),
        (lambda: client.merge_patch("/x", {}), 1),
    ):
        server.script = [good]
        await client.get("/kept")
        server.requests.clear()
        server.script = [cuts, good]
        if seen == 1:
            with pytest.raises(Unreachable):
                await ask()
        else:
            await ask()
        assert len(server.requests) == seen
    server.script = [good]
    await client.get("/kept")
    server.requests.clear()
    server.script = [cuts]
    with pytest.raises(Unreachable):
        await client.get("/x")
    assert len(server.requests) == 2, "once more, and no oftener"


async def test_an_answer_that_nobody_asked_for_is_taken_for_nobodys(tmp_path: Path) -> None:
    authority, context = server_tls(tmp_path, "127.0.0.1")
    kept: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
                body = b'{"path":"%s"}' % path
                writer.write(HEAD % len(body) + body)

    async with await asyncio.start_server(serve, "127.0.0.1", ssl=context) as running:
        server = Server(f"https://127.0.0.1:{running.sockets[0].getsockname()[1]}", authority.pem, authority)
        async with ApiClient.from_kubeconfig(server.kubeconfig()) as client:
            assert await client.get("/one") == {"path": "/one"}
            kept[0].write(HEAD % 16 + b'{"path":"/else"}')
            await rest()
            for path in ("/two", "/three"):
                assert await client.get(path) == {"path": path}
    assert len(kept) == 2


async def test_of_a_name_with_many_addresses_a_few_are_tried() -> None:
    def thousands(_host: str, port: int, *_more: object) -> AddressInfos:
        v4 = [(socket.AF_INET, 0, 6, "", (f"192.0.2.{number}", port)) for number in range(200)]
        return [*v4, *((socket.AF_INET6, 0, 6, "", (f"2001:db8::{number:x}", port, 0, 0)) for number in range(2000))]

    found = await Lookups(thousands).of("a").resolve("evil.example", 443)
    assert [each["host"] for each in found][::4] == ["192.0.2.0", "2001:db8::0"]
    assert len(found) == 8


@pytest.mark.parametrize("path", ["/x y", "/x\r\nX: y", "/\u00e4", "x"])
async def test_a_path_that_would_be_another_request_is_not_sent(server: Server, client: ApiClient, path: str) -> None:
    with pytest.raises(Unreachable):
        await client.get(path)
    with pytest.raises(Unreachable):
        await client.document("/x", accept="a\r\nX: y", limit=1)
    assert server.requests == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "HTTP 407 Proxy Auth"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", ""),
        (b"nonsense\r\n\r\n", "no HTTP/1.1"),
        (b"", "ended before"),
    ],
)
async def test_a_proxy_that_does_not_connect_us_is_unreachable_in_its_own_words(answer: bytes, words: str) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        url = f"http://me:hunter2@127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        config = kubeconfig({"server": "https://api.example.test", "proxy-url": url}, {})
        async with ApiClient.from_kubeconfig(config) as client:
            with pytest.raises(Unreachable, match=rf"the proxy 127\.0\.0\.1:\d+: .*{words}") as caught:
                await client.get("/x")
    assert "hunter2" not in str(caught.value)


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
