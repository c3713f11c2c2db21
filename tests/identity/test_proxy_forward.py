"""Requests and answers pass as they came, streamed, and end in time."""

from __future__ import annotations

import asyncio

import pytest
from proxy_kit import LOOPBACK, exchange, fixed, proxy, read_answer, request, upstream

from nodeattest_identity.proxy.limits import ProxyLimits


async def test_a_request_passes_with_its_raw_target_and_comes_back_with_the_answer() -> None:
    async with upstream() as seen, proxy(seen) as port:
        answer = await exchange(port, request("/a%20b/c;v=1?x=%2F..&y", "Accept: text/plain", "Cookie: a=b"))
        assert (answer.status, answer.body) == (200, b"hello")
        assert seen.bytes.startswith(b"GET /a%20b/c;v=1?x=%2F..&y HTTP/1.1\r\n")
        assert seen.values("host") == ["addon.example"]
        assert seen.values("cookie") == ["a=b"]
        assert seen.values("x-authenticated-user") == ["alice"]
        assert seen.values("user-agent") == seen.values("accept-encoding") == []


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


async def test_a_stream_arrives_piece_by_piece_and_is_cut_off_at_the_deadline() -> None:
    more = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"7\r\ndata: 1\r\n")
        await more.wait()
        writer.write(b"7\r\ndata: 2\r\n")
        await reader.read()

    async with upstream(script) as seen, proxy(seen, ProxyLimits(request_seconds=3)) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request())
        await reader.readuntil(b"data: 1")
        more.set()
        await reader.readuntil(b"data: 2")
        rest = await reader.read()
        assert rest == b"\r\n", "an answer that ended in order would pass for a whole one"
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
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        await reader.read()

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
        b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 200_000 + b"\r\n\r\n",
    ],
    ids=["no HTTP", "two lengths", "200 KB"],
)
async def test_an_answer_that_is_no_http_is_502_and_quotes_nothing(answer: bytes) -> None:
    async with upstream(fixed(answer)) as seen, proxy(seen) as port:
        got = await exchange(port, request())
        assert got.status == 502
        assert b"SSH" not in got.body
