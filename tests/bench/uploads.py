"""Uploads through kubectl proxy, kube-apiserver, gateway and sidecar to an add-on: how many are lost.

An upload is lost unless the add-on's answer arrives, and has length and SHA-256 of what was sent. Sizes, borders,
framings and waits follow from an upload's number, so a loss can be repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.addon_chain import Chain, chain, own_address
from bench.figures import Figure, table
from nodeattest_demo.world import Tools
from nodeattest_identity.proxy.limits import MAX_HEAD

HOST = "127.0.0.1"
TIMES = 200
AT_ONCE = 8
PATIENCE = 300.0
"""Seconds for one upload."""
LARGEST = 200_000_000
EVERY_LARGEST = 50
"""One upload in so many has the largest body."""
SIZES = (1, 3, MAX_HEAD - 1, MAX_HEAD, MAX_HEAD + 1, 40_000, 3 * MAX_HEAD + 1, 1 << 20, 8 << 20)
WAITS = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 11.0, 58.0)
"""Seconds until the add-on answers: a header's clock runs for 10 s, an answer's for 60 s."""
STRIDE = 37
"""Between two combinations that follow: it has no divisor in common with their number, so all come."""
CHUNK = 20_000
PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Upload:
    """One request."""

    number: int
    size: int
    """Bytes of its body."""
    chunked: bool
    wait: float
    cut: str
    """Where the pieces of the first 128 KiB end, a name of ``CUTS``; what follows has pieces of 1 MiB."""

    def head(self, path: str) -> bytes:
        framing = "Transfer-Encoding: chunked" if self.chunked else f"Content-Length: {self.size}"
        target = f"{path}/upload?wait={self.wait:g}&number={self.number}"
        return f"POST {target} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{framing}\r\n\r\n".encode()

    def body(self) -> Iterator[bytes]:
        """Give its content by parts; no two parts of an upload are the same."""
        size = CHUNK if self.chunked and self.size < LARGEST else PIECE
        source = random.Random(self.number)
        for start in range(0, self.size, size):
            yield source.randbytes(min(size, self.size - start))


CUTS = ("whole", "head", "head - 1", "head + 1", "32 KiB", "32 KiB + 1", "bytes", "last byte")


def planned(times: int, largest: int) -> list[Upload]:
    """List the uploads of a run."""
    combinations = list(itertools.product(SIZES, (False, True), CUTS))
    uploads: list[Upload] = []
    for number in range(times):
        size, chunked, cut = combinations[number * STRIDE % len(combinations)]
        if number % EVERY_LARGEST == 0:
            size, chunked = largest, number % (2 * EVERY_LARGEST) != 0
        uploads.append(Upload(number, size, chunked, WAITS[number % len(WAITS)], cut))
    return uploads


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


def main(arguments: list[str], tools: Tools) -> int:
    """Run; the exit status is 1 if an upload was lost, 2 if nothing could be run."""
    parser = argparse.ArgumentParser(prog="python -m bench uploads")
    parser.add_argument("--times", type=int, default=TIMES, help="uploads (%(default)s)")
    parser.add_argument("--largest", type=int, default=LARGEST, help="bytes of every 50th body (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args(arguments)
    address = own_address()
    if tools.assets is None or address is None:
        print("uploads: expected KUBEBUILDER_ASSETS, and an address that is not loopback", file=sys.stderr)
        return 2
    uploads = planned(options.times, options.largest)
    with (
        tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name,
        chain(Path(name), tools.assets, address) as to,
    ):
        begin = time.monotonic()
        lost = asyncio.run(run(uploads, to))
        seconds = time.monotonic() - begin
    sizes = sum(one.size for one in uploads)
    figures = [
        Figure("uploads lost", len(lost), f"of {len(uploads)}", "0", f"{sizes / 1e6:.0f} MB", 0.0),
        Figure("… of the largest", sum(uploads[each].size == options.largest for each in lost), "", "0"),
        Figure("… of those with a late answer", sum(uploads[each].wait > 0 for each in lost), "", "0"),
        Figure("time of all", seconds, "s", ""),
    ]
    found = {"figures": [each.to_json() for each in figures], "lost": [*lost.values()]}
    print(json.dumps(found, indent=2) if options.json else "\n".join((table(figures), *lost.values())))
    return 1 if lost else 0
