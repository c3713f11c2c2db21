"""Strangers' sockets on raw connections: a server stays below its manifest's memory and loses no honest request.

``make bench ARGS=neighbours`` does the same with a thousand sockets an attack, and measures times.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from polling import until

from bench.front_ends import FrontEnd, front_ends
from bench.neighbours import HonestRequest, attacked
from bench.raw_sockets import ATTACKS

NAMES = ("sidecar", "sidecar over TLS", "gateway", "issuer", "discovery front", "webhook")
SOCKETS = 200
"""Of each attack, from 16 addresses, in a process of their own."""
REQUESTS = 5
"""Of the honest client during each attack, each on a new connection."""


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
        with attacked(one, attack, SOCKETS, 0.0) as ask:
            await until(lambda ask=ask: (seen := ask()).get("opened", 0) + seen.get("refused", 0) >= SOCKETS)
            for _ in range(REQUESTS):
                await HonestRequest(one).run()
                assert one.memory() < one.most_memory, attack
    assert one.process.popen.poll() is None
