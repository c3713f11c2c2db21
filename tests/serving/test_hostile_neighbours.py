"""Strangers' sockets on raw connections: a server stays below its manifest's memory and loses no honest request.

``make bench ARGS=neighbours`` does the same with a thousand sockets an attack, and measures times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from polling import until

from bench.front_ends import FrontEnd, front_ends
from bench.neighbours import HonestRequest
from bench.raw_sockets import ATTACKS, RAW, Neighbours

NAMES = ("sidecar", "sidecar over TLS", "gateway", "issuer", "discovery front", "webhook")
SOCKETS = 200
"""Of each attack, from 16 addresses."""
REQUESTS = 5
"""Of the honest client during each attack, each on a new connection."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FrontEnd]]:
    with front_ends(tmp_path_factory.mktemp("servers")) as running:
        yield {one.name: one for one in running}


@asynccontextmanager
async def attacked(one: FrontEnd, attack: str) -> AsyncGenerator[None]:
    """Attack inside the context, from when each socket was opened or refused once."""
    neighbours = Neighbours(one.port, attack, SOCKETS, one.path, "" if attack in RAW else one.ca)
    running = asyncio.create_task(neighbours.run())
    try:
        await until(lambda: neighbours.seen["opened"] + neighbours.seen["refused"] >= SOCKETS)
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("name", NAMES)
async def test_strangers_sockets_lose_no_honest_request_and_stay_below_the_manifests_memory(
    name: str, servers: dict[str, FrontEnd]
) -> None:
    one = servers[name]
    for attack in (each for each in ATTACKS if one.ca or each != "TLS garbage"):
        async with attacked(one, attack):
            for _ in range(REQUESTS):
                await HonestRequest(one).run()
                assert one.memory() < one.most_memory, attack
    assert one.process.popen.poll() is None
