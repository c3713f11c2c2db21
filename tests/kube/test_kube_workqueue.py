"""Keys are handed out once, in turns of nested groups, and none takes more than its share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual import advance, now, virtually

from nodeattest_kube.errors import TooManyRequests
from nodeattest_kube.periodic import BackoffPolicy
from nodeattest_kube.workqueue import FairQueue, WorkQueue

Worker = Callable[[str], Awaitable[None]]


def queue() -> WorkQueue[str]:
    return WorkQueue(backoff=BackoffPolicy(initial=1.0, cap=60.0, jitter=0.5), clock=now, random=lambda: 0.0)


async def drive(made: WorkQueue[str], worker: Worker, *, workers: int = 3, seconds: float = 1000.0) -> None:
    """Let the workers work for some virtual time."""
    asyncio.get_running_loop().call_later(seconds, made.shut_down)
    await made.run(worker, workers)


@virtually
async def test_a_key_added_while_worked_on_is_worked_on_once_more_and_never_by_two() -> None:
    spans: list[tuple[float, float]] = []
    made = queue()
    made.add("a")

    async def worker(key: str) -> None:
        begun = now()
        if len(spans) == 0:
            made.add(key)
            made.add(key)
            assert made.depth == 0
            assert made.in_flight == 1
        await advance(5)
        spans.append((begun, now()))

    await drive(made, worker)
    assert spans == [(0, 5), (5, 10)]


@virtually
async def test_the_earliest_of_several_delays_counts_and_what_is_planned_for_a_dropped_key_is_not_done() -> None:
    done: list[tuple[str, float]] = []
    made = queue()
    for delay in (30, 10, 20):
        made.add_after("a", delay)
    made.add_after("b", 10)
    made.retry("c", None)
    made.drop("b")
    made.drop("c")
    assert (made.delayed, made.depth, made.failures("c")) == (1, 0, 0)

    async def worker(key: str) -> None:
        done.append((key, now()))

    await drive(made, worker)
    assert done == [("a", 10)]


@virtually
async def test_retries_of_a_key_wait_longer_and_longer_until_it_is_forgotten() -> None:
    waits: list[float] = []
    made, busy = queue(), TooManyRequests(429, "TooManyRequests", "busy", retry_after=45.0)
    waits.extend(made.retry("a", None) for _ in range(8))
    waits.append(made.retry("b", None))
    assert made.failures("a") == 8
    made.forget("a")
    waits += [made.retry("a", busy), made.retry("a", None)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 1, 45, 2], "and as long as the server asks"


def test_counts_of_lost_keys_take_bounded_memory() -> None:
    made: WorkQueue[int] = WorkQueue(clock=lambda: 0.0, timer=lambda _delay, _callback: lambda: None)
    for key in range(100_005):
        made.retry(key, None)
    assert [made.failures(key) for key in (0, 4, 5, 100_004)] == [0, 0, 1, 1]


@virtually
async def test_a_bug_in_the_worker_costs_its_key_a_retry_and_others_nothing() -> None:
    bugs: list[float] = []
    good: list[str] = []
    made = queue()
    made.add("bad")
    made.add("good")

    async def worker(key: str) -> None:
        if key == "bad" and now() < 6:
            bugs.append(now())
            raise ZeroDivisionError
        good.append(key)

    await drive(made, worker, workers=1)
    assert bugs == [0, 1, 3]
    assert good == ["good", "bad"]


@virtually
async def test_shut_down_finishes_what_is_worked_on_and_drops_what_waits() -> None:
    done: list[tuple[str, float]] = []
    made = queue()
    made.add("a")
    made.add("b")
    made.add_after("c", 2)

    async def worker(key: str) -> None:
        await advance(5)
        made.add(key)
        done.append((key, now()))

    await drive(made, worker, workers=1, seconds=3)
    made.add("d")
    made.add_after("d", 1)
    assert (made.depth, made.delayed, made.in_flight) == (0, 0, 0)
    assert done == [("a", 5)]


@virtually
async def test_work_goes_on_with_the_next_run_after_a_bug_beside_it_ended_one() -> None:
    done: list[str] = []
    made = queue()

    async def worker(key: str) -> None:
        done.append(key)

    running = asyncio.create_task(made.run(worker, 2))
    await advance(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    made.add("a")
    await drive(made, worker)
    assert done == ["a"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(0, 5)), max_size=30),
    st.integers(1, 4),
)
@virtually
async def test_every_add_is_followed_by_a_whole_run_of_its_key(adds: list[tuple[str, int, int]], workers: int) -> None:
    began: list[tuple[str, float]] = []
    busy: set[str] = set()
    made = queue()
    for key, at, _length in adds:
        asyncio.get_running_loop().call_later(at, made.add, key)
    lengths = [length for _key, _at, length in adds]

    async def worker(key: str) -> None:
        assert key not in busy
        busy.add(key)
        began.append((key, now()))
        await advance(lengths[len(began) % len(lengths)])
        busy.discard(key)

    await drive(made, worker, workers=workers)
    for key, at, _length in adds:
        assert any(name == key and begun >= at for name, begun in began)


# Groups

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


@virtually
async def test_requesters_and_clusters_whose_work_hangs_delay_no_other() -> None:
    hanging: WorkQueue[Key] = WorkQueue(groups=groups, limits=(4, 2), clock=now)
    done: list[tuple[Key, float]] = []

    async def work(key: Key) -> None:
        if "hung" in key:
            await advance(1000)
        done.append((key, now()))

    for number in range(100):
        hanging.add(("hung", "x", number))
        hanging.add(("a", "hung", number))
    for number in range(10):
        hanging.add(("a", "well", number))
    asyncio.get_running_loop().call_later(500, hanging.shut_down)
    await hanging.run(work, 8)
    assert [key for key, at in done if at == 0] == [("a", "well", number) for number in range(10)]
