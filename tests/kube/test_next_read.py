"""A read for all who ask meanwhile, that began after each of them asked."""

from __future__ import annotations

import asyncio

from virtual import advance, now, virtually

from nodeattest_kube.elector import NextRead


class Slow:
    """What is read: each read takes a second, and gives when it began."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.trouble: Exception | None = None

    async def read(self) -> float:
        self.begun.append(now())
        began = now()
        await advance(1)
        if self.trouble is not None:
            raise self.trouble
        return began


@virtually
async def test_an_answer_is_of_a_read_that_began_after_it_was_asked_for() -> None:
    slow = Slow()
    reads = NextRead(slow.read)

    async def ask(at: float) -> tuple[float, float]:
        await advance(at)
        return at, await reads.read()

    asked = await asyncio.gather(*(ask(number / 10) for number in range(50)))
    assert all(began >= at for at, began in asked)
    assert slow.begun == [0, 1, 2, 3, 4, 5]  # one at a time, and one for all who ask while another is under way


@virtually
async def test_who_gives_up_takes_nothing_from_the_others() -> None:
    slow = Slow()
    reads = NextRead(slow.read)
    first, second = asyncio.create_task(reads.read()), asyncio.create_task(reads.read())
    await advance(0.5)
    third = asyncio.create_task(reads.read())
    await advance(0.1)
    first.cancel()
    third.cancel()
    assert await second == 0
    assert await reads.read() == 2  # the third one's had begun
