"""What a server answers over one connection, whatever it is: an answer, or why there is none; never two answers."""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from polling import until
from scripted import Server, answers, cut, kubeconfig, serving, thing

from nodeattest_kube.client import ApiClient, ApiError, Unreachable
from nodeattest_kube.http1 import Disconnected, Head, HttpConnection, HttpError

OK: Final = b"HTTP/1.1 200 OK\r\n"
LENGTH: Final = OK + b"Content-Type: application/json; charset=utf-8\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED: Final = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nX: y\r\n\r\n"
LARGE: Final = b"a" * 70_000


class Peer(asyncio.Transport):
    """The other end of a connection, whose bytes the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.reads = True
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.sent.append(bytes(data))

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


def connected() -> tuple[HttpConnection, Peer]:
    connection, peer = HttpConnection(), Peer()
    connection.connection_made(peer)
    return connection, peer


async def asked(*pieces: bytes, ends: bool = False) -> tuple[HttpConnection, Head, bytes]:
    """Ask, get these pieces, and read the answer."""
    connection, _ = connected()
    sending = asyncio.create_task(connection.send(b"GET /x HTTP/1.1\r\n\r\n"))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    if ends:
        connection.eof_received()
    head = await sending
    body = b""
    while part := await connection.read():
        body += part
    return connection, head, body


async def read_on(sending: asyncio.Task[Head], connection: HttpConnection) -> None:
    await sending
    while await connection.read():
        pass


@pytest.mark.parametrize(
    ("answer", "body", "kept"),
    [
        (LENGTH, b"hello", True),
        (CHUNKED, b"hello", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH, b"hello", True),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 8 + LENGTH, b"hello", True),
        (OK + b"Content-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", b"hello", False),
        (b"HTTP/1.0 503 Busy\r\n\r\nhello", b"hello", False),
        (LENGTH + LENGTH, b"hello", False),
        (LENGTH + b"x", b"hello", False),
    ],
)
async def test_an_answer_is_read_and_its_connection_kept_only_where_it_ended_there(
    answer: bytes, body: bytes, *, kept: bool
) -> None:
    for pieces in ([answer], [answer[at : at + 1] for at in range(len(answer))]):
        connection, _, read = await asked(*pieces) if kept else await asked(*pieces, ends=True)
        assert read == body
        assert connection.is_reusable == kept


async def test_of_a_head_what_the_client_uses_is_told() -> None:
    fields = b"DATE: today\r\nRetry-After: 3\r\nContent-Type: text/html; x=y\r\nContent-Length: 0\r\n\r\n"
    _, head, _ = await asked(b"HTTP/1.1 429 Too Many Requests\r\n" + fields)
    assert head == Head(429, "Too Many Requests", "text/html", "3", "today")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Length: 5, 5\r\n\r\nhello",
        OK + b"Content-Length: +5\r\n\r\nhello",
        OK + b"Content-Length: -5\r\n\r\nhello",
        OK + b"Content-Length: 99999999999999999999\r\n\r\nhello",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\nhello",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        OK + b"Content-Length : 5\r\n\r\nhello",
        OK + b"Content-Length: 5\r\n folded\r\n\r\nhello",
        OK + b"X: a\x00b\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"X: a\rb\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Content-Length: 5\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 9 + LENGTH,
        OK + b"X: " + LARGE + b"\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"X: y\r\n" * 20_000 + b"Content-Length: 5\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: " + LARGE + b"\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n" + b"X: y\r\n" * 40_000 + b"\r\n",
    ],
    ids=lambda answer: repr(answer[:60]),
)
@pytest.mark.parametrize("size", [1 << 30, 1000, 1])
async def test_an_answer_that_two_readers_could_read_differently_or_that_is_too_large_is_refused(
    answer: bytes, size: int
) -> None:
    with pytest.raises(HttpError) as refused:
        await asked(*(answer[at : at + size] for at in range(0, len(answer), size)))
    assert "hello" not in str(refused.value)


@pytest.mark.parametrize(
    "begun",
    [b"", OK, OK + b"X: ", OK + b"Transfer-Encoding: chunked\r\n\r\n5;x=", CHUNKED[:-3]],
    ids=repr,
)
async def test_what_does_not_end_is_refused_before_it_is_large(begun: bytes) -> None:
    connection, peer = connected()
    sending = asyncio.create_task(connection.send(b"GET /x HTTP/1.1\r\n\r\n"))
    await asyncio.sleep(0)
    connection.data_received(begun)
    for _ in range(70):
        if not peer.is_closed:
            connection.data_received(b"a" * 1000)
    assert peer.is_closed
    with pytest.raises(HttpError):
        await read_on(sending, connection)


@pytest.mark.parametrize("answer", [LENGTH[:-1], CHUNKED[:-1], OK, b"", OK + b"\r\nhello"])
async def test_an_answer_that_is_cut_is_none(answer: bytes) -> None:
    with pytest.raises(Disconnected):
        await asked(answer, ends=True)


@given(answer=st.sampled_from([LENGTH, CHUNKED, LENGTH + LENGTH, LENGTH + b"x"]), cuts=st.sets(st.integers(0, 200)))
def test_an_answer_is_the_same_however_it_is_cut_into_pieces(answer: bytes, cuts: set[int]) -> None:
    edges = sorted({0, len(answer), *(each for each in cuts if each < len(answer))})
    pieces = [answer[start:end] for start, end in pairwise(edges)]
    _, head, body = asyncio.run(asked(*pieces, ends=True))
    assert (head.status, body) == (200, b"hello")


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    connection, peer = connected()
    connection.data_received(LENGTH)
    assert peer.is_closed
    assert not connection.is_reusable
    with pytest.raises(HttpError):
        await connection.send(b"GET /x HTTP/1.1\r\n\r\n")
    assert peer.sent == []


async def test_a_server_is_slowed_down_before_it_fills_the_memory_and_small_chunks_are_one_piece() -> None:
    connection, peer = connected()
    sending = asyncio.create_task(connection.send(b"GET /x HTTP/1.1\r\n\r\n"))
    await asyncio.sleep(0)
    connection.data_received(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    read, small = 0, b"1\r\nx\r\n" * 40_000
    while peer.reads:
        connection.data_received(small)
        read += 40_000
    assert read < 1 << 20
    assert (await sending).status == 200
    pieces = 0
    while not peer.reads:
        read -= len(await connection.read())
        pieces += 1
    assert read == 0
    assert pieces < 20


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


async def test_a_hundred_connections_to_one_server_are_the_most(server: Server) -> None:
    held, now, most = asyncio.Event(), 0, 0

    async def hold(_request: web.Request) -> web.StreamResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await held.wait()
        now -= 1
        return web.json_response(thing("a", 1))

    server.script = [hold]
    async with ApiClient.from_kubeconfig(server.kubeconfig(), request_timeout=60.0) as client:
        requests = [asyncio.create_task(client.get("/x")) for _ in range(110)]
        await until(lambda: now == 100)
        held.set()
        await asyncio.gather(*requests)
    assert most == 100


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
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "too early"),
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


async def test_a_proxy_that_says_nothing_is_unreachable_in_time() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as proxy:
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        config = kubeconfig({"server": "https://api.example.test", "proxy-url": url}, {})
        async with ApiClient.from_kubeconfig(config, request_timeout=0.2) as client:
            with pytest.raises(Unreachable, match="time limit"):
                await client.get("/x")


async def test_a_request_on_a_kept_connection_takes_few_calls(tmp_path: Path) -> None:
    """A bound of what a request costs, as a count: of Python functions that are entered, from the call to its value."""
    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        server.script = [answers(thing("a", 1))]
        await client.get("/api/v1/things/a")
        own: list[str] = []

        def note(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call" and (
                "nodeattest_kube" in frame.f_code.co_filename or "_parsing" in frame.f_code.co_filename
            ):
                own.append(frame.f_code.co_qualname)

        sys.setprofile(note)
        try:
            await client.get("/api/v1/things/a")
        finally:
            sys.setprofile(None)
    assert len(own) <= 80, own


async def test_an_answer_of_another_protocol_is_an_api_error_whatever_it_is(server: Server) -> None:
    """The port of something that speaks no TLS."""

    async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LENGTH)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as plain:
        named = {"server": f"https://127.0.0.1:{plain.sockets[0].getsockname()[1]}"}
        async with ApiClient.from_kubeconfig(server.kubeconfig({**named})) as client:
            with pytest.raises(ApiError):
                await client.get("/x")
