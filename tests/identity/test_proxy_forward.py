"""Requests and answers pass as they came, streamed, and end in time."""

from __future__ import annotations

import asyncio

import pytest
from proxy_kit import LOOPBACK, exchange, proxy, read_answer, request, upstream

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
