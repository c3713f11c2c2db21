"""What chaos injects faults into: two replicas behind links, of which one leads, and API servers with their etcds."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import threading
import time
from contextlib import suppress
from enum import StrEnum
from http.client import HTTPException
from pathlib import Path

import yaml

from nodeattest_controller import manifests
from nodeattest_demo.world import CLUSTER, NAMESPACE, USER, Tools, World, controller_config, create_all
from nodeattest_sandbox.child_process import LOOPBACK, Process, StartFailed
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane

UNREACHABLE = (OSError, HTTPException, ApiRefusal, ValueError, StartFailed)
"""What is raised while a server is down, starts, or ends in the middle of an answer."""
RESTART = 1.0
"""Seconds between the end of a replica and its next start."""
_PIECE = 1 << 16
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: close() sends RST."""


class Mode(StrEnum):
    """What happens to the connections of a link."""

    OPEN = "open"
    DROP = "packets lost"
    """What is sent is lost, in both directions; the connections end when the fault does."""
    HANG = "packets late"
    """What is sent arrives when the fault ends."""
    RESET = "connections reset"
    ANSWERS = "answers lost"
    """Requests arrive, and their answers are lost."""


class Link:
    """A TCP proxy before one API server; it connects from a loopback address of its own, which audit logs show."""

    def __init__(self, target: int, source: str) -> None:
        """``target``: a port of loopback."""
        self._target, self._source = target, source
        self._mode = Mode.OPEN
        self._open: set[_Connection] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        listener = socket.create_server((LOOPBACK, 0))
        self.port: int = listener.getsockname()[1]
        self._loop.create_task(self._main(listener))
        threading.Thread(target=self._loop.run_forever, daemon=True, name=f"link-{source}").start()

    def set(self, mode: Mode) -> None:
        """Change what happens to connections from now on."""
        asyncio.run_coroutine_threadsafe(self._set(mode), self._loop).result(10)

    def lead(self, kubeconfig: str, plane: ControlPlane) -> str:
        """Let a kubeconfig lead through this link."""
        return kubeconfig.replace(plane.server, f"https://{LOOPBACK}:{self.port}")

    async def _main(self, listener: socket.socket) -> None:
        await (await asyncio.start_server(self._serve, sock=listener)).serve_forever()

    async def _set(self, mode: Mode) -> None:
        self._mode = mode
        for connection in [*self._open]:
            if mode is Mode.RESET or connection.lost:
                connection.reset()
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode is Mode.RESET:
            _reset(writer)
            return
        try:
            answers, requests = await asyncio.open_connection(LOOPBACK, self._target, local_addr=(self._source, 0))
        except OSError:
            _reset(writer)
            return
        connection = _Connection((writer, requests))
        self._open.add(connection)
        pumps = [
            asyncio.create_task(self._pump(connection, reader, requests, is_answer=False)),
            asyncio.create_task(self._pump(connection, answers, writer, is_answer=True)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self._open.discard(connection)
        for pump in pumps:
            pump.cancel()
        for each in connection.writers:
            each.close()

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_answer: bool,
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(_PIECE):
                while self._mode is Mode.HANG:
                    await self._changed.wait()
                if connection.lost or self._mode is Mode.DROP or (self._mode is Mode.ANSWERS and is_answer):
                    connection.lost = True
                    continue
                writer.write(piece)
                await writer.drain()
            while self._mode in {Mode.HANG, Mode.DROP}:  # an end is a packet, too
                await self._changed.wait()


class _Connection:
    def __init__(self, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.writers = writers
        self.lost = False
        """Whether bytes were lost, so that no more can follow them."""

    def reset(self) -> None:
        for writer in self.writers:
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class Replica:
    """One replica's process, which is started again whenever it ends, as a Deployment does."""

    def __init__(self, number: int, world: World, directory: Path, tools: Tools, lease: int) -> None:
        self.name = f"replica-{number}"
        self.address = f"127.0.0.{10 + number}"
        self.management = Link(_port(world.management), self.address)
        self._directory = directory / self.name
        self._directory.mkdir()
        kubeconfig, config = self._directory / "kubeconfig", self._directory / "config.yaml"
        document = world.management.client_kubeconfig(USER).read_text(encoding="utf-8")
        kubeconfig.write_text(self.management.lead(document, world.management), encoding="utf-8")
        settings = controller_config(world) | {
            "kubeconfig": str(kubeconfig),
            "leaseDuration": f"{lease}s",
            "renewDeadline": f"{lease * 2 / 3:.1f}s",
            "retryPeriod": f"{lease / 8:.1f}s",
        }
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        self._command = [str(tools.controller), "run", "--config", str(config)]
        self._process = self._start()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._process.stop()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the controller itself; one that has ended gets none."""
        with suppress(ProcessLookupError, OSError, ValueError):
            os.kill(self._process.pid(), number)

    def leads(self, holder: str) -> bool:
        """Return whether this replica has the identity of a Lease's holder: its log has it, and no other one."""
        return bool(holder) and holder.encode() in self._process.log.read_bytes()

    def _start(self) -> Process:
        return Process.of_program("controller", self._command, self._directory)

    def _keep(self) -> None:
        while not self._stop.wait(RESTART):
            if self._process.popen.poll() is not None:
                self._process = self._start()


def start_replicas(world: World, directory: Path, tools: Tools, lease: int) -> tuple[list[Replica], Link]:
    """Start both, and the link to the workload cluster, whose kubeconfig they share."""
    create_all(world.workload.client(), manifests.objects("workload-hardening"), user=USER)
    workload = Link(_port(world.workload), "127.0.0.10")
    document = world.workload.client_kubeconfig(USER).read_text(encoding="utf-8")
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/{CLUSTER}-kubeconfig"
    world.management.client().patch(secret, {"stringData": {"value": workload.lead(document, world.workload)}})
    return [Replica(number, world, directory, tools, lease) for number in (1, 2)], workload


def _port(plane: ControlPlane) -> int:
    return int(plane.server.rpartition(":")[2])


def revive(plane: ControlPlane, part: str) -> None:
    """Wait until a process that was killed has ended, and start it again."""
    end = time.monotonic() + 15.0
    while Path(f"/proc/{plane.pids[part]}").exists():
        assert time.monotonic() < end, f"{part} did not end"
        time.sleep(0.05)
    for left in range(4, -1, -1):
        try:
            plane.revive()
        except StartFailed:  # the port is still in use
            if not left:
                raise
            time.sleep(1.0)
        else:
            return
