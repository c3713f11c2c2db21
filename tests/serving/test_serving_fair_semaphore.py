"""A semaphore that is fair among peers: a few at once, each peer in turn, and a line that ends."""

from __future__ import annotations

import asyncio

import pytest

from nodeattest_providers.errors import Unavailable
from nodeattest_serving.fair_semaphore import FairSemaphore


class Asking:
    """Some who ask in one order, and the order in which they had their turn."""

    def __init__(self, **limits: float) -> None:
        self.semaphore = FairSemaphore(**limits)  # type: ignore[arg-type]
        self.had: list[str] = []
        self.go = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, *names: str) -> list[asyncio.Task[None]]:
        """Ask, each as the peer that is the name's first letter."""
        asked: list[asyncio.Task[None]] = []
        for name in names:
            asked.append(asyncio.create_task(self.have(name)))
            for _ in range(3):
                await asyncio.sleep(0)
        self.tasks += asked
        return asked

    async def have(self, name: str) -> None:
        async with self.semaphore.acquire(name[0]):
            self.had.append(name)
            await self.go.wait()

    async def end(self) -> list[BaseException | None]:
        self.go.set()
        return await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_peers_are_served_one_after_another_however_many_one_asks_for() -> None:
    asking = Asking(limit=1, max_waiting=8)
    await asking.ask("a0", "a1", "a2", "a3", "b1", "b2", "c1")
    assert asking.had == ["a0"], "one at once"
    assert await asking.end() == [None] * 7
    assert asking.had == ["a0", "a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_peer_holds_at_most_its_part_and_what_it_releases_is_its_own_next_waiters() -> None:
    asking = Asking(limit=4, limit_of_peer=2, max_waiting=8)
    names = ("a0", "a1", "a2", "a3", "b0", "b1", "c0")
    await asking.ask(*names)
    assert asking.had == ["a0", "a1", "b0", "b1"]
    assert asking.semaphore.waiting == 3
    assert await asking.end() == [None] * 7
    assert sorted(asking.had) == [*names]
    await asking.ask("d0", "d1", "e0", "e1")
    assert asking.had[-4:] == ["d0", "d1", "e0", "e1"], "all are free again"


async def test_where_no_place_is_left_the_longest_line_gives_one_up_and_never_the_shorter() -> None:
    asking = Asking(limit=1, max_waiting=4)
    names = ("a0", "a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3")
    await asking.ask(*names)
    assert asking.semaphore.waiting == 4
    ended = dict(zip(names, await asking.end(), strict=True))
    assert {name for name, error in ended.items() if isinstance(error, Unavailable)} == {"a3", "a4", "a5", "b3"}
    assert asking.had == ["a0", "a1", "b1", "a2", "b2"]


async def test_a_cancelled_waiter_that_is_evicted_does_not_fail_the_request_of_the_peer_that_evicts_it() -> None:
    asking = Asking(limit=1, max_waiting=2)
    await asking.ask("a0", "a1", "a2")
    asking.tasks.append(asyncio.create_task(asking.have("b1")))
    asking.tasks[2].cancel()  # cancels its future now; its task runs after b1, which evicts it
    ended = await asking.end()
    assert isinstance(ended.pop(2), asyncio.CancelledError)
    assert ended == [None, None, None]
    assert asking.had == ["a0", "a1", "b1"]


async def test_who_waits_too_long_or_goes_away_keeps_nobody_from_his_turn() -> None:
    late = Asking(limit=1, timeout=0.01)
    await late.ask("a0", "b1")
    with pytest.raises(Unavailable, match="too many requests"):
        await late.tasks[1]
    assert late.semaphore.waiting == 0
    asking = Asking(limit=1)
    _, gone, _ = await asking.ask("c0", "d1", "e1")
    gone.cancel()
    await asking.end()
    assert asking.had == ["c0", "e1"]
    assert asking.semaphore.waiting == 0


async def test_a_turn_that_comes_as_its_owner_goes_is_the_next_ones() -> None:
    asking = Asking(limit=1)
    first, gone, last = await asking.ask("a0", "b1", "c1")
    first.add_done_callback(lambda _: gone.cancel())
    await asking.end()
    assert asking.had[-1] == "c1"
    assert last.done()
