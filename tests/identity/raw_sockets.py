"""Hostile neighbours of a server, on raw sockets: ``python -m raw_sockets``, and JSON on standard input.

``{"port", "attack", "sockets", "path", "ca"}``; ``ca`` is empty for no TLS. Prints one JSON object for each
line of standard input, with what the sockets saw since they began, and ends with standard input. A socket that the
server closes is opened again, at most ``RATE`` a second of all.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

HOST = "127.0.0.1"
ADDRESSES = 16
"""Addresses that the neighbours come from, 127.0.0.2 and following."""
RATE = 200.0
"""New connections a second: a handshake costs a server some 2 ms of CPU, whoever asks for it."""
SLOW = 1.0
"""Seconds between two bytes."""
PIPELINED = 50
CLIENT_HELLO = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"
RENEGOTIATION = b"\x16\x03\x03\x00\x04\x00\x00\x00\x00"
"""A HelloRequest in plain text, within a session."""


@dataclass
class Neighbours:
    """All sockets of one attack."""

    port: int
    attack: str
    sockets: int
    path: str
    ca: str
    seen: Counter[str] = field(default_factory=Counter[str])
    _next: float = 0.0
    _tls: ssl.SSLContext | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self.sockets):
                group.create_task(self._again_and_again(number))

    async def _again_and_again(self, number: int) -> None:
        act = ATTACKS[self.attack]
        while True:
            await self._turn()
            try:
                async with asyncio.timeout(10):
                    reader, writer = await self._open(number)
            except (OSError, TimeoutError):
                self.seen["refused"] += 1
                continue
            self.seen["opened"] += 1
            self.seen["open"] += 1
            try:
                with suppress(OSError, asyncio.IncompleteReadError):
                    await act(self, reader, writer)
            finally:
                self.seen["open"] -= 1
                writer.transport.abort()

    async def _turn(self) -> None:
        """Wait until another connection may be opened."""
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now) + 1 / RATE
        await asyncio.sleep(self._next - now)

    async def _open(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._tls is None and self.ca:
            self._tls = ssl.create_default_context(cafile=self.ca)
            self._tls.check_hostname = False
        local = (f"127.0.0.{2 + number % ADDRESSES}", 0)
        return await asyncio.open_connection(HOST, self.port, ssl=self._tls, local_addr=local, limit=1 << 12)

    def head(self, *fields: str, method: str = "POST") -> bytes:
        lines = (f"{method} {self.path} HTTP/1.1", "Host: a", "Content-Type: application/json", *fields, "", "")
        return "\r\n".join(lines).encode()


async def slow_header(all_: Neighbours, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A header, one byte a second."""
    await _slowly(all_.head(f"X-A: {'a' * 4096}"), reader, writer)


async def slow_body(all_: Neighbours, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A body, one byte a second."""
    writer.write(all_.head("Content-Length: 100000"))
    await _slowly(b"{" * 4096, reader, writer)


async def no_read(all_: Neighbours, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Many requests, and no answer is read."""
    cast("asyncio.Transport", writer.transport).pause_reading()
    for _ in range(PIPELINED):
        writer.write(all_.head(method="GET"))
        await writer.drain()
        await asyncio.sleep(SLOW)
    await _end(reader, writer)


async def half_close(all_: Neighbours, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A request, and the end of our direction before its end."""
    writer.write(all_.head("Content-Length: 100")[:-2])
    await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    await _end(reader, writer)


async def garbage(_all: Neighbours, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """No TLS, or no HTTP."""
    writer.write(bytes(range(256)) * 16)
    await _end(reader, writer)


async def tls_garbage(_all: Neighbours, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A handshake that begins, and records out of turn."""
    writer.write(CLIENT_HELLO + RENEGOTIATION)
    await _slowly(RENEGOTIATION * 100, reader, writer)


async def extensions(all_: Neighbours, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A chunk whose extensions do not end."""
    writer.write(all_.head("Transfer-Encoding: chunked") + b"1;a=")
    while not reader.at_eof():
        writer.write(b"x" * 1024)
        await writer.drain()
        await asyncio.sleep(SLOW / 10)


async def pipelining(all_: Neighbours, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Many requests at once, again and again."""
    while not reader.at_eof():
        writer.write(all_.head(method="GET") * PIPELINED)
        await writer.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(SLOW):
                while await reader.read(1 << 16):
                    pass
                return


async def _slowly(data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(SLOW)
        if reader.at_eof():
            return


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait for the server to close."""
    cast("asyncio.Transport", writer.transport).resume_reading()
    while await reader.read(1 << 16):
        pass


Attack = Callable[[Neighbours, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ATTACKS: dict[str, Attack] = {
    "slow header": slow_header,
    "slow body": slow_body,
    "no read": no_read,
    "half-close": half_close,
    "garbage": garbage,
    "TLS garbage": tls_garbage,
    "chunk extensions": extensions,
    "pipelining": pipelining,
}
RAW = frozenset({"garbage", "TLS garbage"})
"""Without a handshake."""


async def main() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, 0)  # attackers are on other machines: they take no processor from the server
    all_ = Neighbours(**json.loads(sys.stdin.readline()))
    running = asyncio.create_task(all_.run())
    while await asyncio.to_thread(sys.stdin.readline):
        sys.stdout.write(json.dumps(all_.seen) + "\n")
        sys.stdout.flush()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(main())
