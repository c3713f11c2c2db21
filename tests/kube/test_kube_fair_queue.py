"""Groups take turns on every level, and none takes more than its share."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from polling import until

from nodeattest_kube.workqueue import FairQueue, WorkQueue

Key = tuple[str, str, int]
"""Cluster, requester, number."""


def groups(key: Key) -> tuple[str, str]:
    return key[:2]


def turns(per_cluster: int = 99, per_requester: int = 99) -> FairQueue[Key]:
    return FairQueue(groups, (per_cluster, per_requester))


def taken(made: FairQueue[Key], count: int) -> list[Key | None]:
    return [made.take() for _ in range(count)]


def test_clusters_take_turns_and_so_do_the_requesters_of_each() -> None:
    made = turns()
    for key in [("a", "x", 1), ("a", "x", 2), ("a", "x", 3), ("a", "y", 1), ("b", "z", 1), ("b", "z", 2)]:
        made.add(key, 0.0)
    assert taken(made, 7) == [
        ("a", "x", 1), ("b", "z", 1), ("a", "y", 1), ("b", "z", 2), ("a", "x", 2), ("a", "x", 3), None,
    ]  # fmt: skip


def test_a_group_with_its_share_in_hand_waits_until_one_is_done() -> None:
    made = turns(per_cluster=3, per_requester=2)
    for number in range(4):
        made.add(("a", "x", number), 0.0)
    first = made.take()
    assert first is not None
    assert taken(made, 2) == [("a", "x", 1), None]
    made.add(("a", "y", 0), 0.0)
    made.add(("a", "y", 1), 0.0)
    assert taken(made, 2) == [("a", "y", 0), None]  # now the cluster has its share
    made.done(first)
    assert taken(made, 2) == [("a", "y", 1), None]  # whose turn it is
    made.done(("a", "x", 1))
    assert taken(made, 2) == [("a", "x", 2), None]
    assert len(made) == 1


@pytest.mark.parametrize("flood", [2_000, 20_000])
def test_a_key_beside_a_flood_is_taken_after_one_of_the_flood(flood: int) -> None:
    made = turns(per_cluster=8, per_requester=4)
    for number in range(flood):
        made.add(("a", "thief", number), 0.0)
    held = [key for key in taken(made, 4) if key]
    made.add(("a", "node", 0), 0.0)
    assert made.take() == ("a", "node", 0)  # although the thief has all that it may have
    made.done(held[0])
    made.add(("a", "node", 1), 0.0)
    assert ("a", "node", 1) in taken(made, 2)


KEYS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 5)), max_size=40)


@given(KEYS, st.integers(1, 4), st.integers(1, 3), st.data())
def test_every_key_comes_once_no_group_exceeds_its_share_and_nothing_is_left(
    keys: list[Key], per_cluster: int, per_requester: int, data: st.DataObject
) -> None:
    made = turns(per_cluster, per_requester)
    for key in keys:
        made.add(key, 0.0)
    assert len(made) == len(set(keys))
    hands: list[Key] = []
    seen: list[Key] = []
    while len(made):
        key = made.take()
        if key is None:
            made.done(hands.pop(data.draw(st.integers(0, len(hands) - 1))))
            continue
        seen.append(key)
        hands.append(key)
        assert max(Counter(one[0] for one in hands).values()) <= per_cluster
        assert max(Counter(one[:2] for one in hands).values()) <= per_requester
    assert sorted(seen) == sorted(set(keys))


async def test_requesters_and_clusters_whose_work_hangs_delay_no_other() -> None:
    queue: WorkQueue[Key] = WorkQueue(groups=groups, limits=(4, 2))
    done: list[Key] = []

    async def work(key: Key) -> None:
        if "hung" in key:
            await asyncio.Event().wait()
        done.append(key)

    for number in range(100):
        queue.add(("hung", "x", number))
        queue.add(("a", "hung", number))
    running = asyncio.create_task(queue.run(work, 8))
    try:
        await asyncio.sleep(0)
        for number in range(10):
            queue.add(("a", "well", number))
        await until(lambda: len(done) >= 10, state=lambda: done)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
