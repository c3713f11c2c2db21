"""Requests of one user at once."""

from __future__ import annotations

import asyncio

import pytest

from nodeattest_identity.proxy.user_slots import UserBusyError, UserSlots


async def hold(slots: UserSlots, user: str, until: asyncio.Event) -> None:
    async with slots.hold(user):
        await until.wait()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_as_many_wait_as_are_served_and_more_are_refused_at_once() -> None:
    slots, go = UserSlots(64), asyncio.Event()
    tasks = [asyncio.create_task(hold(slots, "alice", go)) for _ in range(200)]
    await settled()
    assert slots.held == 64
    refused = [task for task in tasks if task.done()]
    assert len(refused) == 200 - 128
    assert all(isinstance(task.exception(), UserBusyError) for task in refused)
    other = asyncio.create_task(hold(slots, "bob", go))
    await settled()
    assert slots.held == 65
    go.set()
    await asyncio.gather(other, *(task for task in tasks if task not in refused))
    assert slots.held == 0


async def test_who_waits_is_served_in_turn() -> None:
    slots, served = UserSlots(1), list[int]()
    first = asyncio.Event()
    holder = asyncio.create_task(hold(slots, "alice", first))
    await settled()

    async def one(number: int) -> None:
        async with slots.hold("alice"):
            served.append(number)

    waiting = asyncio.create_task(one(1))
    await settled()
    with pytest.raises(UserBusyError):
        await one(2)
    first.set()
    await asyncio.gather(holder, waiting)
    assert served == [1]


async def test_who_waits_too_long_is_refused_and_leaves_no_trace() -> None:
    slots, go = UserSlots(1, seconds=0.01), asyncio.Event()
    holder = asyncio.create_task(hold(slots, "alice", go))
    await settled()
    for _ in range(3):
        with pytest.raises(UserBusyError):
            await hold(slots, "alice", go)
    go.set()
    await holder
    await hold(slots, "alice", go)
    assert slots.held == 0


@pytest.mark.parametrize("served", [False, True])
async def test_a_waiter_that_goes_away_gives_back_what_it_has(served: bool) -> None:
    slots, go = UserSlots(1), asyncio.Event()
    holder = asyncio.create_task(hold(slots, "alice", go))
    await settled()
    waiter = asyncio.create_task(hold(slots, "alice", go))
    await settled()
    if served:
        go.set()
        await holder  # hands its slot to the waiter, whose task has not run yet
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    go.set()
    await holder
    await asyncio.wait_for(hold(slots, "alice", go), 1)
    assert slots.held == 0
