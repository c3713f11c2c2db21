"""Uploads through the whole chain of real programs arrive, and their answers come back.
An upload is lost unless the add-on's answer arrives, and has length and SHA-256 of what was sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from addon_chain import Chain, chain, own_address
from needs import not_possible

from nodeattest_identity.proxy.limits import MAX_HEAD

pytestmark = pytest.mark.conformance

HOST = "127.0.0.1"
AT_ONCE = 8
PATIENCE = 300.0
"""Seconds for one upload."""
LARGEST = 200_000_000
CHUNK = 20_000
PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Upload:
    """One request."""

    number: int
    size: int
    """Bytes of its body."""
    chunked: bool
    cut: str
    """Where the pieces of the first 128 KiB end, a name in ``_write``; what follows has pieces of 1 MiB."""

    def head(self, path: str) -> bytes:
        framing = "Transfer-Encoding: chunked" if self.chunked else f"Content-Length: {self.size}"
        target = f"{path}/upload?number={self.number}"
        return f"POST {target} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{framing}\r\n\r\n".encode()

    def body(self) -> Iterator[bytes]:
        """Give its content by parts; no two parts of an upload are the same."""
        size = CHUNK if self.chunked and self.size < LARGEST else PIECE
        source = random.Random(self.number)
        for start in range(0, self.size, size):
            yield source.randbytes(min(size, self.size - start))


async def send(one: Upload, to: Chain) -> None:
    """Upload once; raises an error with what was lost."""
    digest, head = hashlib.sha256(), one.head(to.path)
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(HOST, to.port)
        try:
            early = bytearray(head)
            for part in one.body():
                digest.update(part)
                early += b"%x\r\n%b\r\n" % (len(part), part) if one.chunked else part
                if len(early) >= PIECE:
                    await _write(writer, early, len(head), one.cut)
                    early.clear()
                    head = b""
            if one.chunked:
                early += b"0\r\n\r\n"
            await _write(writer, early, len(head), one.cut)
            answer = await reader.read()
        finally:
            writer.transport.abort()
    status, _, told = answer.partition(b"\r\n\r\n")
    wanted = f"{one.size} {digest.hexdigest()}".encode()
    if not status.startswith(b"HTTP/1.1 200 ") or wanted not in told:
        raise ConnectionError(f"expected the answer {wanted!r}, got {answer[:300]!r}")


async def _write(writer: asyncio.StreamWriter, data: bytearray, head: int, cut: str) -> None:
    """Write by pieces, each a segment of its own: the loop turns, and Nagle's algorithm is off."""
    borders = {
        "whole": [],
        "head": [head],
        "head - 1": [head - 1],
        "head + 1": [head + 1],
        "32 KiB": list(range(head, len(data), MAX_HEAD))[:4],
        "32 KiB + 1": list(range(head, len(data), MAX_HEAD + 1))[:4],
        "bytes": list(range(head, min(head + 20, len(data)))),
        "last byte": [len(data) - 1],
    }[cut]
    marks = sorted({0, len(data), *(each for each in borders if 0 < each < len(data))})
    for start, end in itertools.pairwise(marks):
        writer.write(bytes(data[start:end]))
        await writer.drain()
        await asyncio.sleep(0)


async def run(uploads: list[Upload], to: Chain) -> dict[int, str]:
    """Send all, some at once; returns what was lost by its number."""
    places = asyncio.Semaphore(AT_ONCE)
    lost: dict[int, str] = {}

    async def sent(one: Upload) -> None:
        async with places:
            try:
                await send(one, to)
            except (OSError, TimeoutError) as error:
                lost[one.number] = f"{one}: {error!r}"

    await asyncio.gather(*map(sent, uploads))
    return lost


UPLOADS = [
    Upload(0, 1, chunked=False, cut="head"),
    Upload(1, 40_000, chunked=False, cut="whole"),
    Upload(2, 40_000, chunked=True, cut="head"),
    Upload(3, 3 * MAX_HEAD + 1, chunked=False, cut="32 KiB + 1"),
    Upload(4, 1 << 20, chunked=False, cut="last byte"),
    Upload(5, 1 << 20, chunked=True, cut="bytes"),
    Upload(6, 8_000_000, chunked=False, cut="head - 1"),
    Upload(7, 200_000_000, chunked=True, cut="whole"),
]


@pytest.fixture(scope="module")
def to(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    address = own_address()
    if address is None:
        not_possible("no address but loopback, which Endpoints may not have")
    with chain(tmp_path_factory.mktemp("chain"), assets, address) as running:
        yield running


def test_no_upload_through_the_whole_chain_is_lost(to: Chain) -> None:
    assert asyncio.run(run(UPLOADS, to)) == {}
