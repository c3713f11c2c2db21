"""Long work in slices."""

from __future__ import annotations

from polling import Turns

from nodeattest_kube.store import BATCH, in_batches


async def test_long_work_lets_others_work_before_each_batch() -> None:
    async with Turns() as turns:
        assert [thing async for thing in in_batches(range(5 * BATCH))] == list(range(5 * BATCH))
    assert turns.count >= 5
