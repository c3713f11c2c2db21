"""Groups take turns, and none takes more than its share."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from nodeattest_kube.turns import Turns
from nodeattest_kube.workqueue import WorkQueue

Key = tuple[str, int]


def group(key: Key) -> str:
    return key[0]


def test_groups_take_turns_and_each_is_served_in_order() -> None:
    turns: Turns[Key] = Turns(group, 99)
    for key in [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("b", 2)]:
        turns.add(key, 0.0)
    assert [turns.take() for _ in range(7)] == [
        ("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3), None,
    ]  # fmt: skip


def test_a_group_with_its_share_in_hand_waits_until_one_is_done() -> None:
    turns: Turns[Key] = Turns(group, 2)
    for number in range(3):
        turns.add(("a", number), 0.0)
    first = turns.take()
    assert first is not None
    assert turns.take() is not None
    assert turns.take() is None
    assert len(turns) == 1
    turns.done(first)
    assert turns.take() == ("a", 2)


def test_the_oldest_of_all_groups_is_told() -> None:
    turns: Turns[Key] = Turns(group, 1)
    assert turns.oldest() is None
    turns.add(("a", 1), 7.0)
    turns.add(("b", 1), 5.0)
    assert turns.oldest() == 5.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=40), st.integers(1, 3))
def test_every_key_comes_once_and_no_group_exceeds_its_share(keys: list[Key], limit: int) -> None:
    turns: Turns[Key] = Turns(group, limit)
    for key in keys:
        turns.add(key, 0.0)
    assert len(turns) == len(set(keys))
    hands: list[Key] = []
    seen: list[Key] = []
    while len(turns):
        key = turns.take()
        if key is None:
            turns.done(hands.pop(0))
            continue
        seen.append(key)
        hands.append(key)
        assert all(sum(one[0] == name for one in hands) <= limit for name in "abc")
    assert sorted(seen) == sorted(set(keys))


async def test_a_group_whose_work_hangs_delays_no_other() -> None:
    queue: WorkQueue[Key] = WorkQueue(group=group, per_group=2)
    done = asyncio.Event()

    async def work(key: Key) -> None:
        if key[0] == "hung":
            await asyncio.sleep(3600)
        done.set()

    for number in range(100):
        queue.add(("hung", number))
    queue.add(("well", 0))
    running = asyncio.create_task(queue.run(work, 4))
    try:
        await asyncio.wait_for(done.wait(), 5)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
