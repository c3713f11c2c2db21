"""Hostile neighbours of a server, on raw sockets; those that it closes are opened again."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

from front_ends import FrontEnd

HOST = "127.0.0.1"
ADDRESSES = 16
"""Addresses that the neighbours come from, 127.0.0.2 and following."""
RATE = 200.0
"""New connections a second: a handshake costs a server some 2 ms of CPU, whoever asks for it."""
PAUSE = 1.0
"""Seconds between two bytes."""
PIPELINED = 50
CLIENT_HELLO = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"
RENEGOTIATION = b"\x16\x03\x03\x00\x04\x00\x00\x00\x00"
"""A HelloRequest in plain text, within a session."""
Act = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def head(path: str, *fields: str, method: str = "POST") -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: a", "Content-Type: application/json", *fields, "", "")
    return "\r\n".join(lines).encode()


def slowly(first: Callable[[str], bytes], data: Callable[[str], bytes]) -> Act:
    """Write something at once, and then a byte at a time."""

    async def act(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first(path))
        for byte in data(path):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(PAUSE)
            if reader.at_eof():
                return

    return act


async def no_read(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send many requests, and read no answer."""
    transport = cast("asyncio.Transport", writer.transport)
    transport.pause_reading()
    for _ in range(PIPELINED):
        writer.write(head(path, method="GET"))
        await writer.drain()
        await asyncio.sleep(PAUSE)
    transport.resume_reading()
    await reader.read()


async def half_close(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End our direction before the request ends."""
    writer.write(head(path, "Content-Length: 100")[:-2])
    await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    await reader.read()


async def garbage(_path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write neither TLS nor HTTP."""
    writer.write(bytes(range(256)) * 16)
    await reader.read()


async def extensions(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write a chunk whose extensions do not end."""
    writer.write(head(path, "Transfer-Encoding: chunked") + b"1;a=")
    while not reader.at_eof():
        writer.write(b"x" * 1024)
        await writer.drain()
        await asyncio.sleep(PAUSE / 10)


async def pipelining(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send many requests at once, again and again."""
    while not reader.at_eof():
        writer.write(head(path, method="GET") * PIPELINED)
        await writer.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(PAUSE):
                await reader.read()


ATTACKS: dict[str, Act] = {
    "slow header": slowly(lambda _: b"", lambda path: head(path, f"X-A: {'a' * 4096}")),
    "slow body": slowly(lambda path: head(path, "Content-Length: 100000"), lambda _: b"{" * 4096),
    "no read": no_read,
    "half-close": half_close,
    "garbage": garbage,
    "TLS garbage": slowly(lambda _: CLIENT_HELLO + RENEGOTIATION, lambda _: RENEGOTIATION * 100),
    "chunk extensions": extensions,
    "pipelining": pipelining,
}
RAW = frozenset({"garbage", "TLS garbage"})
"""Without a handshake."""


@asynccontextmanager
async def attacking(server: FrontEnd, attack: str, sockets: int) -> AsyncGenerator[Counter[str]]:
    """Attack inside the block; gives how many connections were opened and refused so far."""
    seen, tls, next_turn = Counter[str](), None, 0.0
    if server.ca and attack not in RAW:
        tls = ssl.create_default_context(cafile=server.ca)
        tls.check_hostname = False

    async def again_and_again(number: int) -> None:
        nonlocal next_turn
        local = (f"127.0.0.{2 + number % ADDRESSES}", 0)
        while True:
            now = asyncio.get_running_loop().time()
            next_turn = max(next_turn, now) + 1 / RATE
            await asyncio.sleep(next_turn - now)
            try:
                async with asyncio.timeout(10):
                    opened = await asyncio.open_connection(HOST, server.port, ssl=tls, local_addr=local, limit=1 << 12)
            except (OSError, TimeoutError):
                seen["refused"] += 1
                continue
            seen["opened"] += 1
            try:
                with suppress(OSError):
                    await ATTACKS[attack](server.path, *opened)
            finally:
                opened[1].transport.abort()

    tasks = [asyncio.create_task(again_and_again(number)) for number in range(sockets)]
    try:
        yield seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
