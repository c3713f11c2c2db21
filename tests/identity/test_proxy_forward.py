"""Requests and answers pass as they came, streamed, and end in time; what is ambiguous, slow or broken does not pass.

Each test says what the add-on saw, not only what was answered.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

import pytest
from aiohttp import web
from polling import until
from proxy_kit import (
    LOOPBACK,
    authorization,
    exchange,
    fixed,
    proxy,
    read_answer,
    request,
    sidecar,
    upstream,
    users_token,
)

from nodeattest_identity.proxy.server import ProxyLimits, ProxyServer
from nodeattest_serving.bounded_server import BindAddress


async def test_a_request_passes_with_its_raw_target_and_comes_back_with_the_answer() -> None:
    async with upstream() as seen, proxy(seen) as port:
        answer = await exchange(port, request("/a%20b/c;v=1?x=%2F..&y", "Accept: text/plain", "Cookie: a=b"))
        assert (answer.status, answer.body) == (200, b"hello")
        assert seen.bytes.startswith(b"GET /a%20b/c;v=1?x=%2F..&y HTTP/1.1\r\n")
        assert seen.values("host") == ["addon.example"]
        assert seen.values("cookie") == ["a=b"]
        assert seen.values("x-authenticated-user") == ["alice"]
        assert seen.values("user-agent") == seen.values("accept-encoding") == []


async def test_a_connection_error_that_is_not_the_clients_is_answered_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(_request: web.BaseRequest) -> web.StreamResponse:
        raise ConnectionResetError

    server = ProxyServer(handle, BindAddress(LOOPBACK, 0), None, ProxyLimits())
    await server.start()
    answer = await exchange(server.port, request())
    await server.stop()
    assert (answer.status, json.loads(answer.body)["reason"]) == (500, "InternalError")
    assert "internal error while answering a request" in caplog.text


@pytest.mark.parametrize("framing", ["Content-Length: 11", "Transfer-Encoding: chunked"])
async def test_a_body_passes_in_its_own_framing(framing: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"0\r\n\r\n" if b"chunked" in head else b"hello world")
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    body = b"b\r\nhello world\r\n0\r\n\r\n" if "chunked" in framing else b"hello world"
    async with upstream(script) as seen, proxy(seen) as port:
        answer = await exchange(port, request("/", framing, method="POST") + body)
        assert answer.status == 201
        assert framing.encode() in seen.bytes
        assert b"hello world" in seen.bytes


async def test_a_stream_arrives_piece_by_piece() -> None:
    more = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"7\r\ndata: 1\r\n")
        await more.wait()
        writer.write(b"7\r\ndata: 2\r\n0\r\n\r\n")
        await reader.read()

    async with upstream(script) as seen, proxy(seen) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request())
        await reader.readuntil(b"data: 1")
        more.set()
        await reader.readuntil(b"data: 2\r\n0\r\n\r\n")
        writer.close()


async def test_an_answer_that_begins_before_the_bodys_end_is_not_due_when_the_body_ends() -> None:
    more = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST"):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
            await reader.readuntil(b"end")
            await more.wait()
            writer.write(b"1\r\nb\r\n0\r\n\r\n")
        await reader.read()

    async with upstream(script) as seen, proxy(seen, ProxyLimits(answer_seconds=0.5)) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request("/", "Content-Length: 6", method="POST") + b"the")
        await reader.readuntil(b"1\r\na\r\n")
        writer.write(b"end")
        for overdue in (request(), request("/", "Content-Length: 1", method="PUT") + b"x"):
            assert (await exchange(port, overdue)).status == 504
        more.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"1\r\nb\r\n0\r\n\r\n"
        writer.close()


async def test_a_connection_is_kept_for_further_requests() -> None:
    async with upstream() as seen, proxy(seen) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        for _ in range(3):
            writer.write(request())
            assert (await read_answer(reader)).body == b"hello"
        writer.close()
        assert len(seen.connections) == 1


async def test_http_1_0_where_the_end_of_a_connection_is_the_end_of_an_answer_is_cut_off_by_a_reset() -> None:
    script = fixed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
    async with upstream(script) as seen, proxy(seen, ProxyLimits(request_seconds=3)) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request().replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        await reader.readuntil(b"half")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_what_is_compressed_is_never_unpacked() -> None:
    """CVE-2026-69243, CVE-2026-69244 and CVE-2026-59881 of aiohttp; neither of these bodies can be unpacked."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"no-gzip")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 4\r\n\r\nbomb")
        await reader.read()

    async with upstream(script) as seen, proxy(seen) as port:
        lines = ("Content-Encoding: gzip", "Content-Length: 7")
        got = await exchange(port, request("/", *lines, method="PUT") + b"no-gzip")
        assert (got.body, got.all("Content-Encoding")) == (b"bomb", ["br"])


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 200_000 + b"\r\n\r\n",
    ],
    ids=["no HTTP", "two lengths", "length and chunked", "200 KB"],
)
async def test_an_answer_that_is_no_http_is_502_and_quotes_nothing(answer: bytes) -> None:
    async with upstream(fixed(answer)) as seen, proxy(seen) as port:
        got = await exchange(port, request())
        assert got.status == 502
        assert b"SSH" not in got.body


async def test_an_answer_that_breaks_off_is_not_passed_for_whole() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async with upstream(script) as seen, proxy(seen) as port:
        got = await exchange(port, request())
        assert (got.body, got.whole) == (b"half", False)


ADMIN: Final = b"GET /admin HTTP/1.1\r\nHost: a\r\nX-Authenticated-User: root\r\n\r\n"
SMUGGLED: Final = {  # beside D10-40 to D10-51 of the attack catalogue
    "chunked and length": b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n" + ADMIN,
    "two equal lengths": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": b"Content-Length: 3, 3\r\n\r\nabc",
    "a length in hex": b"Content-Length: 0x3\r\n\r\nabc",
    "a blank within a length": b"Content-Length: 3 3\r\n\r\nabc",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + ADMIN,
    "chunked and identity": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + ADMIN,
    "a tab before the coding": b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + ADMIN,
    "a folded coding": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + ADMIN,
    "bare CR": b"X-A: b\rX-Authenticated-User: root\r\n\r\n",
    "NUL in a value": b"X-A: b\x00c\r\n\r\n",
    "a name with a blank": b"X A: b\r\n\r\n",
    "a name with a colon first": b": b\r\n\r\n",
    "no name": b"just text\r\n\r\n",
    "bad chunk size": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + ADMIN,
    "a chunk that is longer than it says": b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    "a bare LF after the chunk size": b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("what", sorted(SMUGGLED))
async def test_ambiguous_framing_is_400_and_smuggles_nothing(what: str) -> None:
    async def reads_all(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    head = f"POST / HTTP/1.1\r\nHost: a\r\n{authorization(users_token())}\r\n".encode()
    async with upstream(reads_all) as seen, sidecar(seen) as running:
        reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
        writer.write(head + SMUGGLED[what])
        assert (await read_answer(reader)).status == 400
        assert b" 200 " not in await reader.read()
        writer.close()
        await until(lambda: running.service.in_flight == 0)
        assert b"/admin" not in seen.bytes
        assert seen.values("x-authenticated-user") in ([], ["alice"])
        assert b"root" not in seen.bytes


@pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0"])
async def test_another_version_of_http_is_400_and_reaches_nobody(version: bytes) -> None:
    async with upstream() as seen, proxy(seen) as port:
        assert (await exchange(port, request().replace(b"HTTP/1.1", version, 1))).status == 400
        assert seen.connections == []


async def test_many_fields_of_usual_size_are_431_and_reach_nobody() -> None:
    async with upstream() as seen, proxy(seen) as port:
        for size, status in ((3000, 200), (3400, 431)):
            fields = [f"X-{number}: {'a' * size}" for number in range(10)]
            assert (await exchange(port, request("/", *fields))).status == status
        assert seen.requests == 1


async def test_a_connection_that_says_nothing_ends_and_so_does_one_that_stops_after_a_request() -> None:
    async with upstream() as seen, proxy(seen, ProxyLimits(header_seconds=1, idle_seconds=0.2)) as port:
        for data, wanted in ((b"", b""), (request(), b"hello")):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.write(data)
            assert (await reader.read()).endswith(wanted)
            writer.close()


async def test_who_takes_an_add_ons_answer_slowly_is_waited_for() -> None:
    size = 16 << 20
    script = fixed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
    async with upstream(script) as seen, proxy(seen, ProxyLimits(unread_seconds=0.1, header_seconds=0.5)) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request())
        await until(lambda: bool(seen.requests))
        for _ in range(3):  # each ends in a sweep
            witness, unfinished = await asyncio.open_connection(LOOPBACK, port)
            unfinished.write(b"GET / HTTP/1.1\r\n")
            await witness.read()
            unfinished.close()
        answer = await read_answer(reader)
        assert (answer.status, len(answer.body), answer.whole) == (200, size, True)
        writer.close()


async def test_expect_100_continue_is_answered_once_the_token_holds_and_others_are_417() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"hello")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    known, lines = authorization(users_token()), ("Expect: 100-continue", "Content-Length: 5")
    async with upstream(script) as seen, sidecar(seen) as running:
        reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
        writer.write(request("/", known, *lines, method="POST"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert (await read_answer(reader)).status == 200
        writer.close()
        assert seen.values("expect") == []
        assert (await exchange(running.port, request("/", *lines, method="POST"))).status == 401
        odd = request("/", known, "Expect: more", "Content-Length: 5", method="POST")
        assert (await exchange(running.port, odd)).status == 417
