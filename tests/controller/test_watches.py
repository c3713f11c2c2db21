"""The tasks of one connection: a bug in one is told, and closing them is quiet."""

from __future__ import annotations

import asyncio

from nodeattest_controller.runtime.task_supervisor import TaskSupervisor


async def for_ever() -> None:
    await asyncio.Event().wait()


async def at_once() -> None:
    return


async def bug(message: str = "no such attribute") -> None:
    raise TypeError(message)


async def bug_at_the_end() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise TypeError("while it was closed")


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_bug_that_ends_a_task_is_told_once_and_the_others_go_on() -> None:
    told: list[BaseException] = []
    watches = TaskSupervisor([for_ever(), bug("first"), bug("second")], died=told.append)
    await turns()
    assert [str(error) for error in told] == ["first"]
    assert watches.died is told[0]
    await watches.close()
    assert len(told) == 1


async def test_tasks_that_end_by_themselves_or_are_closed_are_told_of_by_nobody() -> None:
    told: list[BaseException] = []
    watches = TaskSupervisor([for_ever(), at_once()], died=told.append)
    await turns()
    await watches.close()
    assert told == []
    assert watches.died is None


async def test_closing_raises_nothing_whatever_the_tasks_die_of() -> None:
    watches = TaskSupervisor([bug_at_the_end(), bug()], died=lambda _: None)
    await turns()
    await watches.close()
