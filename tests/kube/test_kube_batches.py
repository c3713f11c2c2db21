"""Long work in slices."""

from __future__ import annotations

import asyncio

from nodeattest_kube.batches import BATCH, in_batches


async def test_long_work_lets_others_work_before_each_batch() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(other())
    assert [thing async for thing in in_batches(range(5 * BATCH))] == list(range(5 * BATCH))
    working.cancel()
    assert turns >= 5
