"""A TCP proxy between replicas and one API server that can lose, delay and reset what it carries.

It knows a client by its process (proc(5): the socket's inode), and speaks for each replica from a loopback address of
its own, so that the API server's audit log tells replicas apart.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

LOOPBACK = "127.0.0.1"
_PIECE = 1 << 16
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: close() sends RST."""


class Mode(StrEnum):
    """What happens between a replica and this API server."""

    OPEN = "open"
    DROP = "drop"
    """What is sent is lost, in both directions; the connections end when the fault does."""
    HANG = "hang"
    """What is sent arrives when the fault ends."""
    RESET = "reset"
    ANSWERS = "answers"
    """Requests arrive, and their answers are lost."""


class Link:
    """The proxy; it runs in a thread of its own until ``close``."""

    def __init__(self, target: int, replica_of: Callable[[int], str | None]) -> None:
        """``target``: the API server's port; ``replica_of``: a client's port to its replica's address."""
        self._target, self._replica_of = target, replica_of
        self._modes: dict[str, Mode] = {}
        self._open: dict[_Connection, str] = {}
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"link-{target}")
        self._thread.start()

    def set(self, replica: str, mode: Mode) -> None:
        """Change what happens to a replica's connections from now on."""
        asyncio.run_coroutine_threadsafe(self._set(replica, mode), self._loop).result(10)

    def close(self) -> None:
        """End every connection and the thread."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def mode(self, replica: str) -> Mode:
        """Return the present mode."""
        return self._modes.get(replica, Mode.OPEN)

    def _run(self) -> None:
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._listener)
        await self._closing.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _set(self, replica: str, mode: Mode) -> None:
        self._modes[replica] = mode
        for connection, owner in list(self._open.items()):
            if owner == replica and (mode is Mode.RESET or connection.lost):
                connection.reset()
            elif owner == replica:
                connection.changed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # only ``_main`` cancels, at the end
            await self._serve_one(reader, writer)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port: int = writer.get_extra_info("peername")[1]
        replica = await asyncio.to_thread(self._replica_of, port)
        if replica is None or self.mode(replica) is Mode.RESET:
            _reset(writer)
            return
        try:
            there = await asyncio.open_connection(LOOPBACK, self._target, local_addr=(replica, 0))
        except OSError:
            _reset(writer)
            return
        connection = _Connection(self, replica, (reader, writer), there)
        self._open[connection] = replica
        try:
            await connection.carry()
        finally:
            self._open.pop(connection, None)


class _Connection:
    def __init__(
        self,
        link: Link,
        replica: str,
        here: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.lost = False
        """Whether bytes were lost, so that no more can follow them."""
        self.changed = asyncio.Event()
        self._link, self._replica, self._here, self._there = link, replica, here, there

    async def carry(self) -> None:
        """Carry bytes both ways until one side ends."""
        tasks = [
            asyncio.create_task(self._pump(self._here[0], self._there[1], is_answer=False)),
            asyncio.create_task(self._pump(self._there[0], self._here[1], is_answer=True)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in (self._here[1], self._there[1]):
                writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with suppress(OSError):
            while piece := await reader.read(_PIECE):
                while (mode := self._link.mode(self._replica)) is Mode.HANG:
                    self.changed.clear()
                    await self.changed.wait()
                if self.lost or mode is Mode.DROP or (mode is Mode.ANSWERS and is_answer):
                    self.lost = True
                    continue
                writer.write(piece)
                await writer.drain()
            while self._link.mode(self._replica) in {Mode.HANG, Mode.DROP}:  # an end is a packet, too
                self.changed.clear()
                await self.changed.wait()

    def reset(self) -> None:
        """End it as a machine does that does not know the connection."""
        for writer in (self._here[1], self._there[1]):
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def owner_of_port(port: int, pids: list[int]) -> int | None:
    """Return which of the processes has the TCP socket with this local port (proc(5), ``net/tcp``)."""
    wanted = f"0100007F:{port:04X}"
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        if words[1] == wanted:
            return next((pid for pid in pids if _holds(pid, f"socket:[{words[9]}]")), None)
    return None


def _holds(pid: int, what: str) -> bool:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(entry.readlink()) == what:
                    return True
    return False
