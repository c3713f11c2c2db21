"""What strangers send: ambiguous framing, slowness, size, and every published hole of proxies like this one.

Each test says what the add-on saw, not only what was answered.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from polling import until
from proxy_kit import LOOPBACK, exchange, proxy, read_answer, request, upstream
from sidecar_kit import authorization, sidecar, users_token

from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_identity.proxy.refusals import Refusal

ADMIN: Final = b"GET /admin HTTP/1.1\r\nHost: a\r\nX-Authenticated-User: root\r\n\r\n"

SMUGGLED: Final = {
    "length and chunked": b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + ADMIN,
    "chunked and length": b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n" + ADMIN,
    "two lengths": b"Content-Length: 0\r\nContent-Length: 66\r\n\r\n" + ADMIN,
    "two equal lengths": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": b"Content-Length: +3\r\n\r\nabc",
    "a length in hex": b"Content-Length: 0x3\r\n\r\nabc",
    "a blank within a length": b"Content-Length: 3 3\r\n\r\nabc",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + ADMIN,
    "chunked and identity": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + ADMIN,
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + ADMIN,
    "a blank before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + ADMIN,
    "a tab before the coding": b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + ADMIN,
    "a folded header": b"X-A: b\r\n X-Authenticated-User: root\r\n\r\n",
    "a folded coding": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + ADMIN,
    "bare LF": b"X-A: b\nX-Authenticated-User: root\r\n\r\n",
    "bare CR": b"X-A: b\rX-Authenticated-User: root\r\n\r\n",
    "NUL in a value": b"X-A: b\x00c\r\n\r\n",
    "a name with a blank": b"X A: b\r\n\r\n",
    "a name with a colon first": b": b\r\n\r\n",
    "no name": b"just text\r\n\r\n",
    "a second Host": b"Host: b\r\n\r\n",
    "bad chunk size": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + ADMIN,
    "a chunk that is longer than it says": b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    "a bare LF after the chunk size": b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("what", sorted(SMUGGLED))
async def test_ambiguous_framing_is_400_and_smuggles_nothing(what: str) -> None:
    head = f"POST / HTTP/1.1\r\nHost: a\r\n{authorization(users_token())}\r\n".encode()
    async with upstream(_reads_all) as seen, sidecar(seen) as running:
        reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
        writer.write(head + SMUGGLED[what])
        assert (await read_answer(reader)).status == 400
        rest = await reader.read()
        assert b" 200 " not in rest
        writer.close()
        await until(lambda: running.service.in_flight == 0)
        assert b"/admin" not in seen.bytes
        assert seen.values("x-authenticated-user") in ([], ["alice"])
        assert b"root" not in seen.bytes


async def test_a_connection_that_says_nothing_ends_and_so_does_one_that_stops_after_a_request() -> None:
    limits = ProxyLimits(header_seconds=1, idle_seconds=0.2)
    heard: list[Refusal] = []
    async with upstream() as seen, proxy(seen, limits, refused=heard) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request())
        assert (await read_answer(reader)).body == b"hello"
        assert await reader.read() == b""
        writer.close()


async def test_who_takes_an_add_ons_answer_slowly_is_waited_for() -> None:
    size = 16 << 20

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
        await reader.read()

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

    lines = ("Expect: 100-continue", "Content-Length: 5")
    async with upstream(script) as seen, sidecar(seen) as running:
        reader, writer = await asyncio.open_connection(LOOPBACK, running.port)
        writer.write(request("/", authorization(users_token()), *lines, method="POST"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert (await read_answer(reader)).status == 200
        writer.close()
        assert seen.values("expect") == []
        refused = await exchange(running.port, request("/", *lines, method="POST"))
        assert refused.status == 401
        odd = request("/", authorization(users_token()), "Expect: more", "Content-Length: 5", method="POST")
        assert (await exchange(running.port, odd)).status == 417


async def test_an_answer_that_breaks_off_is_not_passed_for_whole() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)

    async with upstream(script) as seen, sidecar(seen) as running:
        got = await exchange(running.port, request("/", authorization(users_token())))
        assert (got.body, got.whole) == (b"half", False)


# What is published of proxies like this one; companions §5.


async def _reads_all(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()
