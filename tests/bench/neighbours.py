"""What hostile neighbours on raw sockets cost each server that strangers reach, and its honest client.

Each attack has a process and 16 addresses of its own. Beside it one honest client opens a new connection for each
request, so that its time has the handshake, too. A request that gets no answer in ``PATIENCE`` is lost, and counted by
where and how. Each attack is measured twice: its sockets are held, or opened again at once when the server closes them.
Attackers are on other machines, so where root measures, server and honest client have the processors before them.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bench.figures import Figure
from bench.front_ends import FrontEnd, front_ends
from bench.raw_sockets import ATTACKS, RAW

HOST = "127.0.0.1"
SOCKETS = 1_000
RAMP = 8.0
"""Seconds until the honest client is measured."""
SECONDS = 10.0
RATE = 8.0
"""Honest requests a second: below the discovery front's limit of one address."""
PATIENCE = 5.0
MOST_MILLISECONDS = 100.0
"""Of an honest client, 99th percentile, while sockets are held."""
PACES = {"held": 10.0, "again at once": 0.0}
"""Seconds until a socket that the server closed is opened again, at most 200 a second of all."""
PRIORITY = -15
"""Of servers and honest client, nice(2)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one attack on one server."""

    milliseconds: list[float]
    lost: dict[str, int]
    """How many of the requests ended how."""
    memory: int
    """Bytes, the most that were seen."""
    cpu: float
    """Of one processor, that the server used."""
    waited: float
    """Of the time, that the server could have run and got no processor."""

    @property
    def percentile(self) -> float:
        ordered = sorted(self.milliseconds)
        return ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)] if ordered else float("inf")

    @property
    def note(self) -> str:
        """Say what the server had of the processors, and how requests were lost."""
        lost = "".join(f"; {count} lost, {how}" for how, count in sorted(self.lost.items()))
        return f"{self.memory >> 20} MiB, {self.cpu:.0%} of a processor, {self.waited:.0%} waited for one{lost}"


def measure(names: Collection[str] = ()) -> list[Figure]:
    """``names``: of servers; none: all."""
    figures: list[Figure] = []
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)  # its children inherit it
    with tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name, front_ends(Path(name)) as servers:
        for one in (each for each in servers if not names or each.name in names):
            alone = asyncio.run(honest(one, 5.0))
            figures.append(Figure(f"{one.name}, alone: 99th percentile", alone.percentile, "ms", "", alone.note))
            for attack in (each for each in ATTACKS if one.tls is not None or each != "TLS garbage"):
                for pace in PACES:
                    figures += _figures(one, attack, pace)
    return figures


def _figures(one: FrontEnd, attack: str, pace: str) -> list[Figure]:
    with attacked(one, attack, SOCKETS, PACES[pace]) as ask:
        time.sleep(RAMP)
        outcome = asyncio.run(honest(one, SECONDS))
        seen = ask()
    most = one.most_memory >> 20
    about = f"{seen.get('open', 0)} open, {seen.get('opened', 0)} opened, {seen.get('refused', 0)} refused"
    bound = MOST_MILLISECONDS if PACES[pace] else None
    target = "" if bound is None else f"<= {bound:g}"
    name = f"{one.name}, {attack}, {pace}"
    return [
        Figure(f"{name}: memory", outcome.memory / 2**20, "MiB", f"<= {most}", about, float(most)),
        Figure("… 99th percentile", outcome.percentile, "ms", target, outcome.note, bound),
        Figure("… lost", sum(outcome.lost.values()), "", "0", f"of {int(SECONDS * RATE)}", 0.0),
    ]


@contextmanager
def attacked(one: FrontEnd, attack: str, sockets: int, pause: float) -> Generator[Ask]:
    """Attack for the length of a block; gives what asks the attackers what they saw."""
    ca = "" if attack in RAW else one.ca
    wanted = {"port": one.port, "attack": attack, "sockets": sockets, "path": one.path, "ca": ca, "pause": pause}
    command = [sys.executable, "-m", "bench.raw_sockets"]
    folder = Path(__file__).parents[1]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder) as child:
        ask = Ask(child)
        ask.tell(json.dumps(wanted))
        try:
            yield ask
        finally:
            child.kill()


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks attackers what their sockets saw."""

    child: subprocess.Popen[str]

    def tell(self, line: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def __call__(self) -> dict[str, int]:
        self.tell("")
        assert self.child.stdout is not None
        return cast("dict[str, int]", json.loads(self.child.stdout.readline()))


async def honest(one: FrontEnd, seconds: float) -> Outcome:
    """Ask at a fixed rate, also when the server is slow."""
    loop = asyncio.get_running_loop()
    begin, took, memory, lost = loop.time(), list[float](), one.memory(), Counter[str]()
    spent = one.spent()
    asked: list[asyncio.Task[None]] = []

    async def ask() -> None:
        since, request = loop.time(), HonestRequest(one)
        try:
            async with asyncio.timeout(PATIENCE):
                await request.run()
        except (OSError, EOFError) as error:  # a time limit is an OSError
            lost[f"{request.phase}: {_cause(error)}"] += 1
        else:
            took.append(1000 * (loop.time() - since))

    for number in range(int(seconds * RATE)):
        await asyncio.sleep(max(0.0, begin + number / RATE - loop.time()))
        asked.append(asyncio.create_task(ask()))
        memory = max(memory, one.memory())
    used, waited = (b - a for a, b in zip(spent, one.spent(), strict=True))
    elapsed = loop.time() - begin
    await asyncio.gather(*asked)
    return Outcome(took, dict(lost), max(memory, one.memory()), used / elapsed, waited / elapsed)


@dataclass(slots=True)
class HonestRequest:
    """One request of an honest client, on a new connection."""

    one: FrontEnd
    phase: str = "connect"

    async def run(self) -> None:
        """Raises an error unless the answer is 200."""
        loop = asyncio.get_running_loop()
        with socket.socket(proto=socket.IPPROTO_TCP) as tcp:  # else asyncio leaves Nagle's algorithm on
            tcp.settimeout(0)
            await loop.sock_connect(tcp, (HOST, self.one.port))
            self.phase = "handshake"
            name = None if self.one.tls is None else HOST
            reader, writer = await asyncio.open_connection(sock=tcp, ssl=self.one.tls, server_hostname=name)
            try:
                self.phase = "answer"
                writer.write(self.one.request())
                head = await reader.readuntil(b"\r\n\r\n")
                if not head.startswith(b"HTTP/1.1 200"):
                    raise ConnectionError(head.decode("latin-1").partition("\r\n")[0])
            finally:
                writer.transport.abort()


def _cause(error: Exception) -> str:
    match error:
        case TimeoutError():
            return f"none in {PATIENCE:g} s"
        case ConnectionResetError():
            return "reset"
        case EOFError():
            return "closed"
        case _:
            return str(error) or type(error).__name__
