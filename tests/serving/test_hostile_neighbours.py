"""Strangers' sockets on raw connections: a server stays below its manifest's memory and loses no honest request."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import pytest
import raw_sockets
from front_ends import FrontEnd, front_ends
from polling import until
from raw_sockets import ATTACKS, HOST, RAW

NAMES = ("sidecar", "sidecar over TLS", "gateway", "issuer", "discovery front", "webhook")
SOCKETS = 200
"""Of each attack, from 16 addresses, in a process of their own."""
REQUESTS = 5
"""Of the honest client during each attack, each on a new connection."""


@contextmanager
def attacked(one: FrontEnd, attack: str, sockets: int) -> Generator[Ask]:
    """Attack for the length of a block; gives what asks the attackers what they saw."""
    ca = "" if attack in RAW else one.ca
    wanted = {"port": one.port, "attack": attack, "sockets": sockets, "path": one.path, "ca": ca}
    command = [sys.executable, raw_sockets.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
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


async def ask_honestly(one: FrontEnd) -> None:
    """Send one request on a new connection; raises an error unless the answer is 200."""
    reader, writer = await asyncio.open_connection(
        HOST, one.port, ssl=one.tls, server_hostname=None if one.tls is None else HOST
    )
    try:
        writer.write(one.request())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(head.decode("latin-1").partition("\r\n")[0])
    finally:
        writer.transport.abort()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FrontEnd]]:
    with front_ends(tmp_path_factory.mktemp("servers")) as running:
        yield {one.name: one for one in running}


@pytest.mark.parametrize("name", NAMES)
async def test_strangers_sockets_lose_no_honest_request_and_stay_below_the_manifests_memory(
    name: str, servers: dict[str, FrontEnd]
) -> None:
    one = servers[name]
    for attack in (each for each in ATTACKS if one.ca or each != "TLS garbage"):
        with attacked(one, attack, SOCKETS) as ask:
            await until(lambda ask=ask: (seen := ask()).get("opened", 0) + seen.get("refused", 0) >= SOCKETS)
            for _ in range(REQUESTS):
                await ask_honestly(one)
                assert one.memory() < one.most_memory, attack
    assert one.process.popen.poll() is None
