"""Verifications: one a machine, bounded in time, and whatever a provider does delays its own machine only."""

from __future__ import annotations

import asyncio

import pytest
from virtual import advance, now, virtually

from nodeattest_controller.verification.verifiers import VerificationRunner
from nodeattest_providers.errors import Reason, Unavailable


async def at_once() -> str:
    return "proven"


async def never() -> None:
    await asyncio.Event().wait()


@virtually
async def test_a_provider_that_hangs_for_one_machine_is_unavailable_for_that_one_only() -> None:
    made = VerificationRunner(5.0)
    hanging = asyncio.create_task(made.run("hung", never))
    await advance(1)
    assert await made.run("well", at_once) == "proven"
    assert not hanging.done()
    with pytest.raises(Unavailable, match=Reason.PLATFORM_UNAVAILABLE):
        await hanging
    assert await made.run("hung", at_once) == "proven"
    assert now() == 5


@virtually
async def test_a_provider_that_does_not_heed_its_end_is_not_asked_about_the_machine_again() -> None:
    freed = asyncio.Event()
    begun = 0

    async def deaf() -> str:
        nonlocal begun
        begun += 1
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue
        return "proven"

    made = VerificationRunner(5.0)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await made.run("hung", deaf)
    assert begun == 1
    assert await made.run("well", at_once) == "proven"
    freed.set()
    assert await made.run("hung", at_once) == "proven"


async def test_requests_of_one_machine_are_verified_one_after_another() -> None:
    made = VerificationRunner(5.0)
    under_way = most = 0

    async def slow() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1

    await asyncio.gather(*(made.run("a", slow) for _ in range(8)))
    assert most == 1


async def test_a_provider_that_cancels_itself_costs_no_worker() -> None:
    async def odd() -> None:
        raise asyncio.CancelledError

    with pytest.raises(Unavailable):
        await VerificationRunner(5.0).run("a", odd)
