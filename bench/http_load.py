"""Load on an HTTP server of this machine, from a process of its own: ``python -m bench.http_load CPU`` and JSON.

The JSON is on standard input: ``{"port", "head", "kind", …}`` where ``kind`` is ``flat`` (``requests`` over
``connections``, each as soon as the one before is answered), ``paced`` (``requests`` at ``rate`` a second, also when
the server is slow: a wait for a free connection counts) or ``held`` (``connections`` upgrades, kept until standard
input ends).
Prints one JSON object, for ``held`` as soon as all are up. Every answer must be the expected status.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import cast

HOST = "127.0.0.1"
PATIENCE = 60.0
"""Seconds for a whole run."""
LENGTH = b"\r\ncontent-length:"


class Failed(Exception):
    """An answer that is no measurement."""


class Connection(asyncio.Protocol):
    """One connection that asks and is answered in turns."""

    def __init__(self, head: bytes, status: bytes) -> None:
        self._head = head
        self._begin = b"HTTP/1.1 " + status
        self._held = b""
        self._transport: asyncio.WriteTransport | None = None
        self._answered: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._held[:end].lower()
        position = head.find(LENGTH)
        length = int(head[position + len(LENGTH) :].split(b"\r\n", 1)[0]) if position >= 0 else 0
        if len(self._held) < end + 4 + length:
            return
        right = self._held.startswith(self._begin)
        told, self._held = self._held[: end + 4 + length], b""
        self._end(None if right else Failed(f"expected {self._begin!r}, got {told[:200]!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or Failed("the server closed the connection"))

    def ask(self) -> asyncio.Future[None]:
        self._answered = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        self._transport.write(self._head)
        return self._answered

    def _end(self, error: Exception | None) -> None:
        waiting, self._answered = self._answered, None
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)


@dataclass(frozen=True)
class Load:
    port: int
    head: str
    kind: str
    connections: int
    requests: int = 0
    rate: float = 0.0
    seconds: list[float] = field(default_factory=list[float])

    async def run(self) -> dict[str, object]:
        opened = [await self._open() for _ in range(self.connections)]
        gc.disable()
        if self.kind == "held":
            for each in opened:
                await each.ask()
            return {"up": len(opened)}
        start = time.perf_counter()
        await (self._flat(opened) if self.kind == "flat" else self._paced(opened))
        took = time.perf_counter() - start
        ordered = sorted(self.seconds)
        at = {str(share): 1000 * ordered[min(int(len(ordered) * share / 100), len(ordered) - 1)] for share in (50, 99)}
        return {"rate": len(ordered) / took, "milliseconds": at, "requests": len(ordered)}

    async def _open(self) -> Connection:
        status = b"101" if self.kind == "held" else b"200"
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: Connection(self.head.encode("latin-1"), status), HOST, self.port)
        return made

    async def _flat(self, opened: list[Connection]) -> None:
        left = iter(range(self.requests))

        async def one(connection: Connection) -> None:
            for _ in left:
                await self._timed(connection, time.perf_counter())

        async with asyncio.TaskGroup() as group:
            for each in opened:
                group.create_task(one(each))

    async def _paced(self, opened: list[Connection]) -> None:
        """Ask at times that do not depend on the answers."""
        free, start = asyncio.Queue[Connection](), time.perf_counter()
        for each in opened:
            free.put_nowait(each)
        running: deque[asyncio.Task[None]] = deque()

        async def one(connection: Connection, due: float) -> None:
            await self._timed(connection, due)
            free.put_nowait(connection)

        for number in range(self.requests):
            due = start + number / self.rate
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            running.append(asyncio.create_task(one(await free.get(), due)))
            while running and running[0].done():
                running.popleft().result()
        for task in running:
            await task

    async def _timed(self, connection: Connection, since: float) -> None:
        await connection.ask()
        self.seconds.append(time.perf_counter() - since)


async def main() -> None:
    wanted = cast("dict[str, object]", json.loads(sys.stdin.readline()))
    load = Load(**wanted)  # pyright: ignore[reportArgumentType] - our own measurement wrote it
    async with asyncio.timeout(PATIENCE):
        done = await load.run()
    print(json.dumps(done), flush=True)
    if load.kind == "held":
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    asyncio.run(main())
