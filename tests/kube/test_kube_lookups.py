"""Look-ups of names: one tenant's, however many hang, delay no other's, and use none of the loop's own threads."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from polling import until

from nodeattest_kube.lookups import PER_TENANT, Lookups


class Resolver:
    """Answers with loopback; names under ``hangs.example`` hang until the end of the test."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.asked: Counter[str] = Counter()

    def getaddrinfo(self, host: str, port: int, *_more: object) -> list[tuple[int, int, int, str, Any]]:
        self.asked[host] += 1
        if host.endswith("hangs.example"):
            self.end.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port))]


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    made = Resolver()
    yield made
    made.end.set()


async def test_a_thousand_hung_lookups_of_one_tenant_leave_threads_to_every_other(resolver: Resolver) -> None:
    lookups = Lookups(resolver.getaddrinfo)
    hung = [asyncio.create_task(lookups.find("a", f"{number}.hangs.example", 443)) for number in range(1000)]
    for tenant in ("b", "c"):
        [found] = await lookups.find(tenant, "honest.example", 443)
        assert found[4] == ("127.0.0.1", 443)
    assert sum(count for host, count in resolver.asked.items() if host.endswith("hangs.example")) == PER_TENANT
    for task in hung:
        task.cancel()
    await asyncio.gather(*hung, return_exceptions=True)
    lookups.close()


async def test_a_lookup_that_nobody_waits_for_counts_until_it_ends(resolver: Resolver) -> None:
    lookups = Lookups(resolver.getaddrinfo)
    for number in range(PER_TENANT):
        hung = asyncio.create_task(lookups.find("a", f"{number}.hangs.example", 443))
        await until(lambda number=number: resolver.asked[f"{number}.hangs.example"])
        hung.cancel()
        await asyncio.gather(hung, return_exceptions=True)
    later = asyncio.create_task(lookups.find("a", "honest.example", 443))
    given_up = asyncio.create_task(lookups.find("a", "never.example", 443))
    await lookups.find("b", "other.example", 443)
    given_up.cancel()
    assert resolver.asked["honest.example"] == 0
    resolver.end.set()
    assert await later
    lookups.close()
    with pytest.raises(OSError, match="no more"):
        await lookups.find("a", "honest.example", 443)
