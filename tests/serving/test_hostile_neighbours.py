"""Hostile neighbours on raw sockets: a server stays below its manifest's memory, and answers an honest client.

``make bench ARGS=neighbours`` does the same with a thousand sockets an attack, and measures times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
from polling import until

from bench.front_ends import FrontEnd, front_ends
from bench.neighbours import PATIENCE, honest
from bench.raw_sockets import ATTACKS, RAW, Neighbours

NAMES = ("sidecar", "sidecar over TLS", "gateway", "issuer", "discovery front", "webhook")
SOCKETS = 20
"""Of each attack."""
SLOW = f"none in {PATIENCE:g} s"
"""How a request is lost on a machine that has other work."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FrontEnd]]:
    with front_ends(tmp_path_factory.mktemp("servers")) as running:
        yield {one.name: one for one in running}


@pytest.mark.parametrize("name", NAMES)
async def test_neighbours_of_every_kind_at_once_end_neither_a_server_nor_an_honest_client(
    name: str, servers: dict[str, FrontEnd]
) -> None:
    one = servers[name]
    attacks = [
        Neighbours(one.port, attack, SOCKETS, one.path, "" if attack in RAW else one.ca)
        for attack in ATTACKS
        if one.ca or attack != "TLS garbage"
    ]
    running = [asyncio.create_task(each.run()) for each in attacks]
    try:
        await until(lambda: all(sum(each.seen[how] for how in ("opened", "refused")) > 0 for each in attacks))
        outcome = await honest(one, 1.0)
    finally:
        for each in running:
            each.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*running)
    assert outcome.milliseconds, f"some are answered, got {outcome.lost}"
    assert [how for how in outcome.lost if not how.endswith(SLOW)] == [], "none is refused, reset or closed"
    assert outcome.memory < one.most_memory
    assert one.process.popen.poll() is None
