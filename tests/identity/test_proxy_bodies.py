"""Requests with bodies are answered, wherever the network cuts them and however long the answer takes. Raw sockets."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import pytest
from polling import until
from proxy_kit import LOOPBACK, Answer, Script, proxy, read_answer, request, upstream

from nodeattest_identity.proxy.limits import MAX_HEAD, ProxyLimits
from nodeattest_identity.proxy.refusals import Refusal

_LIMIT = 60.0
"""Seconds for one exchange."""
_ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone"
_SIZES = (1, 3, MAX_HEAD - 1, MAX_HEAD, MAX_HEAD + 1, 40_000, 3 * MAX_HEAD + 1, 1 << 20)


def _takes(size: int, *, chunked: bool, release: asyncio.Event | None = None) -> Script:
    """Answer each request of so many bytes once it is whole, and released."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            if chunked:
                while length := int(await reader.readuntil(b"\r\n"), 16):
                    await reader.readexactly(length + 2)
                await reader.readexactly(2)
            else:
                await reader.readexactly(size)
            if release is not None:
                await release.wait()
            writer.write(_ANSWER)

    return script


def _written(size: int, *, chunked: bool, piece: int = 20_000) -> tuple[bytes, bytes]:
    """Write the header and the body of a request."""
    body = bytes(97 + number % 26 for number in range(size))
    if not chunked:
        return request("/", f"Content-Length: {size}", method="POST"), body
    parts = (body[start : start + piece] for start in range(0, size, piece))
    text = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    return request("/", "Transfer-Encoding: chunked", method="POST"), text


def _cut(data: bytes, borders: set[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(each for each in borders if 0 < each < len(data))})
    return [data[start:end] for start, end in itertools.pairwise(marks)]


async def _write(writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        for _ in range(10):  # the proxy shares this loop: it reads before the next piece is written
            await asyncio.sleep(0)


async def _sent(port: int, pieces: list[bytes]) -> Answer:
    """Send pieces, each of which the proxy reads on its own, and read the answer."""
    async with asyncio.timeout(_LIMIT):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        try:
            await _write(writer, pieces)
            return await read_answer(reader)
        finally:
            writer.close()


async def _header_deadline_passed(port: int) -> None:
    """Return when the proxy has refused a header that began later than this call."""
    async with asyncio.timeout(_LIMIT):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"G")
        assert (await read_answer(reader)).status == 408
        writer.close()


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("size", _SIZES)
async def test_a_body_is_answered_wherever_its_pieces_end(size: int, framing: str) -> None:
    chunked = framing == "chunks"
    head, body = _written(size, chunked=chunked)
    data, begin = head + body, len(head)
    whole = len(data)
    cuts: list[set[int]] = [
        set(),  # all at once
        {begin},  # the body on its own
        {begin - 1},
        {begin + 1},
        {whole - 1},  # a last piece of one byte
        {begin, begin + 1, whole - 1},
        {whole - MAX_HEAD},
        {whole - MAX_HEAD - 1},
        {begin, whole - 40_000},
        {whole - 5, whole - 2},  # around the last chunk
        set(range(begin, whole, MAX_HEAD)),
        set(range(begin, whole, MAX_HEAD + 1)),
    ]
    heard: list[Refusal] = []
    async with upstream(_takes(size, chunked=chunked)) as seen, proxy(seen, refused=heard) as port:
        for borders in cuts:
            answer = await _sent(port, _cut(data, borders))
            assert (answer.status, answer.body, answer.whole) == (201, b"done", True), borders
        assert seen.requests == len(cuts), "each request reached the add-on once"
        assert heard == []


@pytest.mark.parametrize("begun", [b"G", b"GET / HTTP/1.1\r\nX-A: " + b"a" * (MAX_HEAD + 1)], ids=["slow", "large"])
async def test_a_next_header_harms_itself_and_not_the_answer_before_it(begun: bytes) -> None:
    release = asyncio.Event()
    head, body = _written(40_000, chunked=False)
    script = _takes(40_000, chunked=False, release=release)
    heard: list[Refusal] = []
    async with upstream(script) as seen, proxy(seen, ProxyLimits(header_seconds=0.5), refused=heard) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(head + body)
        await until(lambda: seen.bytes.endswith(body))
        writer.write(begun)
        await _header_deadline_passed(port)
        release.set()
        assert (await read_answer(reader)).body == b"done"
        async with asyncio.timeout(_LIMIT):
            with suppress(ConnectionResetError):  # nothing is read any more after a header that is too large
                assert b"201" not in await reader.read()
        assert heard, "the next header was refused"
        assert seen.requests == 1
        writer.close()
