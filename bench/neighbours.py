"""What hostile neighbours on raw sockets cost each server that strangers reach, and its honest client.

Each attack has a process and 16 addresses of its own. Beside it one honest client opens a new connection for each
request, so that its time has the handshake, too. A request that gets no answer in ``PATIENCE`` is lost.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bench.figures import Figure
from bench.front_ends import FrontEnd, front_ends
from bench.raw_sockets import ATTACKS, RAW

HOST = "127.0.0.1"
SOCKETS = 1_000
RAMP = 10.0
"""Seconds until the honest client is measured."""
SECONDS = 15.0
RATE = 8.0
"""Honest requests a second: below the discovery front's limit of one address."""
PATIENCE = 5.0
MOST_MILLISECONDS = 100.0
"""Of an honest client, 99th percentile."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one attack on one server."""

    milliseconds: list[float]
    lost: int
    memory: int
    """Bytes, the most that were seen."""
    sockets: dict[str, int]

    @property
    def percentile(self) -> float:
        ordered = sorted(self.milliseconds)
        return ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)] if ordered else float("inf")


def measure() -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name, front_ends(Path(name)) as servers:
        for one in servers:
            alone = asyncio.run(honest(one, 5.0))
            note = f"{alone.memory >> 20} MiB"
            figures.append(Figure(f"{one.name}, alone: 99th percentile", alone.percentile, "ms", "", note))
            for attack in ATTACKS:
                if one.tls is None and attack == "TLS garbage":
                    continue
                figures += _figures(one, attack)
    return figures


def _figures(one: FrontEnd, attack: str) -> list[Figure]:
    with attacked(one, attack, SOCKETS) as ask:
        time.sleep(RAMP)
        outcome = asyncio.run(honest(one, SECONDS))
        seen = ask()
    most = one.most_memory >> 20
    about = f"{seen.get('open', 0)} open, {seen.get('opened', 0)} opened, {seen.get('refused', 0)} refused"
    lost = f"{outcome.lost} of {outcome.lost + len(outcome.milliseconds)} lost"
    return [
        Figure(f"{one.name}, {attack}: memory", outcome.memory / 2**20, "MiB", f"<= {most}", about, float(most)),
        Figure("… 99th percentile", outcome.percentile, "ms", f"<= {MOST_MILLISECONDS:g}", lost, MOST_MILLISECONDS),
    ]


@contextmanager
def attacked(one: FrontEnd, attack: str, sockets: int) -> Generator[Ask]:
    """Attack for the length of a block; gives what asks the attackers what they saw."""
    ca = "" if attack in RAW else one.ca
    wanted = {"port": one.port, "attack": attack, "sockets": sockets, "path": one.path, "ca": ca}
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
    begin, took, memory = loop.time(), list[float](), one.memory()
    asked: list[asyncio.Task[None]] = []

    async def ask() -> None:
        since = loop.time()
        await _answered(one)
        took.append(1000 * (loop.time() - since))

    for number in range(int(seconds * RATE)):
        await asyncio.sleep(max(0.0, begin + number / RATE - loop.time()))
        asked.append(asyncio.create_task(ask()))
        memory = max(memory, one.memory())
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    lost = [each for each in outcomes if isinstance(each, BaseException)]
    return Outcome(took, len(lost), max(memory, one.memory()), {})


async def _answered(one: FrontEnd) -> None:
    """Ask once on a new connection; raises an error unless the answer is 200."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(HOST, one.port, ssl=one.tls)
        try:
            writer.write(one.request())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise ConnectionError(head.decode("latin-1"))
        finally:
            writer.transport.abort()
