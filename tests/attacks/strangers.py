"""Strangers from 200 addresses of loopback, with a connection of each kind, which they open again when it has ended.

They share the event loop of the server under test, on virtual time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from virtual import advance

HOST: Final = "127.0.0.1"
ADDRESSES: Final = 200
ROUND_TRIP: Final = 0.1
"""Seconds."""


class Strangers:
    """All of them."""

    def __init__(self, port: int, ca_file: Path) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._opened = 0
        self.connected = asyncio.Event()
        """Set once all connections were opened."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(ADDRESSES):
                for kind in (self._half_open, self._slow_handshake, self._idle):
                    group.create_task(self._again_and_again(kind, f"127.0.{1 + number // 100}.{1 + number % 100}"))

    async def _again_and_again(self, kind: Callable[[str], Awaitable[None]], address: str) -> None:
        while True:
            with suppress(OSError):
                await kind(address)
            await advance(ROUND_TRIP)

    async def _half_open(self, address: str) -> None:
        """Connect, and send nothing."""
        await self._hold(address)

    async def _slow_handshake(self, address: str) -> None:
        """Send a ClientHello without its last byte."""
        outgoing = ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            self._tls.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST).do_handshake()
        await self._hold(address, first=outgoing.read()[:-1])

    async def _idle(self, address: str) -> None:
        """Send nothing after the handshake; without a client certificate, the server may end it then."""
        await self._hold(address, tls=self._tls)

    async def _hold(self, address: str, *, tls: ssl.SSLContext | None = None, first: bytes = b"") -> None:
        reader, writer = await asyncio.open_connection(HOST, self._port, local_addr=(address, 0))
        self._opened += 1
        if self._opened == 3 * ADDRESSES:
            self.connected.set()
        try:
            if tls is not None:
                await writer.start_tls(tls, server_hostname=HOST)
            writer.write(first)
            await reader.read()
        finally:
            writer.transport.abort()
