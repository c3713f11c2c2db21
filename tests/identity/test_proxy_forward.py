"""Requests, answers and WebSockets pass as they came, streamed, and end in time; nothing ambiguous or broken passes.

Each test says what the add-on saw, not only what was answered.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import json
from dataclasses import replace
from typing import Final, cast

import proxy_kit
import pytest
from aiohttp import web
from polling import until
from proxy_kit import SIDECAR, asked_by, connected, exchange, fixed, proxy, read_answer, request, sidecar, upstream

from nodeattest_identity.proxy.refusals import ProxyLimits
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_serving.bounded_server import BindAddress, SettingsError
from nodeattest_serving.program import ProgramMetrics, run_server


async def test_requests_of_one_connection_pass_with_their_raw_target_and_come_back_with_the_answer() -> None:
    asked = request("/a%20b/c;v=1?x=%2F..&y", "Accept: text/plain", "Cookie: a=b")
    async with upstream() as seen, proxy(seen) as port, connected(port) as (reader, writer):
        for _ in range(2):
            writer.write(asked)
            answer = await read_answer(reader)
            assert (answer.status, answer.body) == (200, b"hello")
        [got] = seen.connections
        assert got.startswith(b"GET /a%20b/c;v=1?x=%2F..&y HTTP/1.1\r\n")
        for name, value in (("host", "addon.example"), ("cookie", "a=b"), ("x-authenticated-user", "alice")):
            assert seen.values(name) == [value] * 2
        assert seen.values("user-agent") == seen.values("accept-encoding") == []


class Broken(ProxyServer):
    def __init__(self, port: int = 0) -> None:
        super().__init__(BindAddress(proxy_kit.LOOPBACK, port), None, ProxyLimits(), user_requests=1, clock=lambda: 0.0)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        raise ConnectionResetError


async def test_a_connection_error_that_is_not_the_clients_is_answered_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxy_kit.running(Broken()) as server:
        answer = await exchange(server.port, request())
    assert (answer.status, json.loads(answer.body)["reason"]) == (500, "InternalError")
    assert "internal error while answering a request" in caplog.text


async def test_a_proxy_whose_address_is_taken_says_so_and_leaves_nothing_open(caplog: pytest.LogCaptureFixture) -> None:
    async with upstream() as seen:
        with pytest.raises(SettingsError, match="another process listens there"):
            await run_server(Broken(seen.port), (), health=None, checks={}, metrics=ProgramMetrics())
    gc.collect()
    assert caplog.messages == []  # aiohttp reports a client that was not closed


@pytest.mark.parametrize(
    ("framing", "body"),
    [("Content-Length: 11", b"hello world"), ("Transfer-Encoding: chunked", b"b\r\nhello world\r\n0\r\n\r\n")],
)
async def test_a_body_passes_in_its_own_framing(framing: str, body: bytes) -> None:
    async with upstream(proxy_kit.after(body[-5:])) as seen, proxy(seen) as port:
        assert (await exchange(port, request("/", framing, method="POST") + body)).status == 200
        assert framing.encode() in seen.bytes
        assert b"hello world" in seen.bytes


async def test_an_answer_that_begins_before_the_bodys_end_is_streamed_and_not_due_when_the_body_ends() -> None:
    more = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST"):
            writer.write(proxy_kit.STREAM)
            await reader.readuntil(b"end")
            await more.wait()
            writer.write(b"1\r\nb\r\n0\r\n\r\n")
        await reader.read()

    posted = request("/", "Content-Length: 6", method="POST") + b"the"
    async with (
        upstream(script) as seen,
        proxy(seen, ProxyLimits(answer_seconds=0.5)) as port,
        connected(port, posted) as (reader, writer),
    ):
        await reader.readuntil(b"hi\r\n")
        writer.write(b"end")
        for overdue in (request(), request("/", "Content-Length: 1", method="PUT") + b"x"):
            assert (await exchange(port, overdue)).status == 504
        more.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"1\r\nb\r\n0\r\n\r\n"


async def test_http_1_0_where_the_end_of_a_connection_is_the_end_of_an_answer_is_cut_off_by_a_reset() -> None:
    asked = request().replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    async with (
        upstream(fixed(proxy_kit.STREAM)) as seen,
        proxy(seen, ProxyLimits(request_seconds=3)) as port,
        connected(port, asked) as (reader, _),
    ):
        await reader.readuntil(b"hi")
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_what_is_compressed_is_never_unpacked() -> None:
    """CVE-2026-69243, CVE-2026-69244 and CVE-2026-59881 of aiohttp; neither of these bodies can be unpacked."""
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 4\r\n\r\nbomb"
    async with upstream(proxy_kit.after(b"no-gzip", packed)) as seen, proxy(seen) as port:
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


@pytest.mark.parametrize("what", SMUGGLED)
async def test_ambiguous_framing_is_400_and_smuggles_nothing(what: str) -> None:
    data = asked_by(method="POST").removesuffix(b"\r\n") + SMUGGLED[what]
    async with upstream(proxy_kit.silent) as seen, sidecar(seen) as server:
        async with connected(server.port, data) as (reader, _):
            assert (await read_answer(reader)).status == 400
            assert b" 200 " not in await reader.read()
        await until(lambda: server.in_flight == 0)
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
        without_end = request("/", *fields).removesuffix(b"\r\n")
        assert (await exchange(port, without_end)).status == 431
        assert seen.requests == 1


async def test_a_connection_that_says_nothing_ends_and_so_does_one_that_stops_after_a_request() -> None:
    async with upstream() as seen, proxy(seen, ProxyLimits(header_seconds=1, idle_seconds=0.2)) as port:
        for data, wanted in ((b"", b""), (request(), b"hello")):
            async with connected(port, data) as (reader, _):
                assert (await reader.read()).endswith(wanted)


async def test_expect_100_continue_is_answered_once_the_token_holds_and_others_are_417() -> None:
    lines = ("Expect: 100-continue", "Content-Length: 5")
    async with upstream(proxy_kit.after(b"hello")) as seen, sidecar(seen) as server:
        async with connected(server.port, asked_by("alice", *lines, method="POST")) as (reader, writer):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"hello")
            assert (await read_answer(reader)).status == 200
        assert seen.values("expect") == []
        assert (await exchange(server.port, request("/", *lines, method="POST"))).status == 401
        odd = asked_by("alice", "Expect: more", "Content-Length: 5", method="POST")
        assert (await exchange(server.port, odd)).status == 417


# WebSockets

KEY: Final = base64.b64encode(b"0123456789abcdef").decode()
ACCEPT: Final = base64.b64encode(
    hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
)
HANDSHAKE: Final = (
    "Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13",
)  # fmt: skip
SWITCHING: Final = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: %b\r\n\r\n" % ACCEPT
)
SIZE: Final = 16 << 20
"""More than the kernel holds of a connection."""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(SWITCHING)
    while piece := await reader.read(1 << 16):
        writer.write(piece)
        await writer.drain()


@pytest.mark.parametrize(
    ("lines", "head"), [((), b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE), (HANDSHAKE, SWITCHING)]
)
async def test_who_takes_an_add_ons_bytes_slowly_is_waited_for(lines: tuple[str, ...], head: bytes) -> None:
    async with (
        upstream(fixed(head + bytes(SIZE))) as seen,
        proxy(seen, ProxyLimits(unread_seconds=0.1, header_seconds=0.5)) as port,
        connected(port, request("/", *lines)) as (reader, _),
    ):
        await until(lambda: bool(seen.requests))
        async with connected(port, b"GET / HTTP/1.1\r\n") as (witness, _):
            await witness.read()  # ends after longer than a response of our own would wait
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(SIZE) == bytes(SIZE)


async def test_frames_pass_both_ways_under_the_callers_name_and_end_with_either_side() -> None:
    asked = asked_by("alice", "X-Authenticated-User: root", *HANDSHAKE)
    async with upstream(echo) as seen, sidecar(seen) as server:
        async with connected(server.port, asked + b"came early") as (reader, writer):
            assert (await read_answer(reader)).status == 101
            assert await reader.readexactly(10) == b"came early"
            writer.write(bytes(SIZE >> 2))
            await until(lambda: len(seen.bytes) > 1 << 18)
            assert await reader.readexactly(SIZE >> 2) == bytes(SIZE >> 2)
        await until(lambda: (seen.closed, server.in_flight) == (1, 0))
        assert seen.values("x-authenticated-user") == ["alice"]
        assert seen.values("authorization") == []


async def test_a_websocket_whose_client_does_not_read_stops_the_add_on_and_ends_at_both_sides() -> None:
    taken = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHING)
        while taken < 2 * SIZE:
            writer.write(bytes(1 << 16))
            await writer.drain()
            taken += 1 << 16

    settings = replace(SIDECAR, limits=ProxyLimits(forwarded_unread_seconds=2))
    async with (
        upstream(endless) as seen,
        sidecar(seen, settings) as server,
        connected(server.port, asked_by("alice", *HANDSHAKE)) as (reader, writer),
    ):
        assert (await read_answer(reader)).status == 101
        cast("asyncio.Transport", writer.transport).pause_reading()
        await until(lambda: (seen.closed, server.in_flight) == (1, 0))
    assert taken < 2 * SIZE


async def test_a_connection_that_was_asked_to_upgrade_is_used_for_nothing_else() -> None:
    """CVE-2018-1002105: what is left on it would be the next caller's answer."""
    script = fixed(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
    async with upstream(script) as seen, sidecar(seen) as server:
        for user, lines in (("alice", HANDSHAKE), ("bob", ())):
            answer = await exchange(server.port, asked_by(user, *lines))
            assert (answer.status, answer.body) == (403, b"no")
        assert len(seen.connections) == 2


async def test_what_is_no_handshake_of_rfc_6455_is_no_upgrade_and_an_answer_to_none_is_none() -> None:
    async with upstream(fixed(SWITCHING)) as seen, sidecar(seen) as server:
        for right, wrong in (
            (b"GET", b"POST"),
            (b"HTTP/1.1", b"HTTP/1.0"),
            (b"Connection: Upgrade", b"Connection: close"),
            (b"Upgrade: websocket", b"Upgrade: websocket, h2c"),
            (b"Version: 13", b"Version: 8"),
            (b"Version: 13", b"Version: 13\r\nContent-Length: 1"),
            (KEY.encode(), b"c2hvcnQ="),
        ):
            assert (await exchange(server.port, asked_by("alice", *HANDSHAKE).replace(right, wrong, 1))).status == 400
        assert seen.connections == []
        assert (await exchange(server.port, asked_by())).status == 502
