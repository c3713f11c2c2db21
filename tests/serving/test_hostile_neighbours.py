"""Strangers' sockets on raw connections: a server stays below its manifest's memory and loses no honest request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from front_ends import NAMES, FrontEnd, front_ends
from polling import until
from raw_sockets import ATTACKS, HOST, attacking

SOCKETS = 200
"""Of each attack, from 16 addresses."""
REQUESTS = 5
"""Of the honest client during each attack, each on a new connection."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FrontEnd]]:
    with front_ends(tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.mark.parametrize("name", NAMES)
async def test_strangers_sockets_lose_no_honest_request_and_stay_below_the_manifests_memory(
    name: str, servers: dict[str, FrontEnd]
) -> None:
    one = servers[name]
    for attack in (each for each in ATTACKS if one.ca or each != "TLS garbage"):
        async with attacking(one, attack, SOCKETS) as seen:
            await until(lambda seen=seen: seen.total() >= SOCKETS)
            for _ in range(REQUESTS):
                host = None if one.tls is None else HOST
                reader, writer = await asyncio.open_connection(HOST, one.port, ssl=one.tls, server_hostname=host)
                writer.write(one.request())
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"), attack
                writer.transport.abort()
                assert one.memory() < one.most_memory, attack
    assert one.process.popen.poll() is None
