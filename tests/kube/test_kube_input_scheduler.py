"""Tenants' API servers take turns, and take at most half of the event loop's time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from polling import until
from scripted import Gate, Handler, Server, answers, event, listing, refuses, streams, thing
from virtual import advance, now, run_virtually, spend, virtually

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden, Malformed
from nodeattest_kube.input_scheduler import ClusterInput, InputScheduler
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.store import BATCH

PIECE = 0.03
"""Seconds that the largest page of a tenant takes."""


async def flood(turns: ClusterInput, record: Callable[[], None], seconds: float = PIECE) -> None:
    """Have input at all times."""
    while True:
        await turns.turn()
        record()
        spend(seconds)


async def rounds(tenants: dict[str, int], honest: str, *, clusters: int = 1) -> list[Counter[str]]:
    """Count the turns of readers of hostile namespaces between two turns of an honest cluster."""
    scheduler, turns = InputScheduler(), list[str]()
    floods = [
        asyncio.create_task(
            flood(scheduler.cluster(name, f"{name}/{number % clusters}"), lambda name=name: turns.append(name))
        )
        for name, readers in tenants.items()
        for number in range(readers)
    ]
    mine, found = scheduler.cluster(honest, f"{honest}/honest"), list[Counter[str]]()
    await advance(1)
    for _ in range(20):
        turns.clear()
        await mine.turn()
        found.append(Counter(turns))
    await cancel(floods)
    return found


async def cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_between_two_turns_of_a_namespace_every_other_gets_at_most_one() -> None:
    first, *others = run_virtually(rounds({"a": 1, "b": 10, "c": 100, "d": 1000}, "honest"))
    assert max(first.values()) <= 1
    assert others == [{"a": 1, "b": 1, "c": 1, "d": 1}] * 19


def test_between_two_turns_of_a_cluster_every_other_of_its_namespace_gets_at_most_one() -> None:
    assert all(each["a"] <= 3 for each in run_virtually(rounds({"a": 100}, "a", clusters=3)))


@virtually
async def test_all_tenants_input_together_takes_at_most_half_of_the_loops_time() -> None:
    scheduler, pieces = InputScheduler(), list[float]()
    record = partial(pieces.append, PIECE)
    floods = [asyncio.create_task(flood(scheduler.cluster(f"n{each}", "c"), record)) for each in range(50)]
    await advance(60)
    took = now()
    await cancel(floods)
    assert 0.4 * took <= sum(pieces) <= 0.5 * took + 2 * PIECE


@virtually
async def test_what_is_charged_outside_of_turns_keeps_them_waiting_as_long() -> None:
    cluster, began = InputScheduler().cluster("a", "a/c"), now()
    for _ in range(100):
        cluster.charge(0.01)
    spend(1)
    await cluster.turn()
    assert now() - began >= 2 - PIECE


@virtually
async def test_a_turn_that_nobody_waits_for_any_more_is_skipped_and_keeps_nobody_waiting() -> None:
    scheduler = InputScheduler()
    turns = [scheduler.cluster(f"n{each}", "c").turn() for each in range(4)]
    turns[0].cancel()
    turns[2].cancel()
    await asyncio.gather(turns[1], turns[3])
    await scheduler.cluster("a", "a/c").turn()


async def page(client: ApiClient) -> None:
    assert await anext(client.pages("/x"))


async def refusal(client: ApiClient) -> None:
    with pytest.raises(Forbidden):
        await client.get("/x")


async def an_event(client: ApiClient) -> None:
    assert await anext(client.watch("/x"))


async def an_object(client: ApiClient) -> None:
    assert await client.get("/x")


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (answers(thing("a", 1)), an_object),
        (answers(listing(1, thing("a", 1))), page),
        (refuses(403, "Forbidden"), refusal),
        (streams(event("ADDED", thing("a", 2))), an_event),
    ],
)
async def test_nothing_that_a_tenants_server_sends_is_parsed_before_its_turn(
    server: Server, client: ApiClient, answer: Handler, read: Callable[[ApiClient], Coroutine[Any, Any, None]]
) -> None:
    gate = Gate()
    client.schedule_input(gate)
    server.script = [answer]
    reading = asyncio.create_task(read(client))
    await until(lambda: gate.turns)
    assert not reading.done()
    gate.turns[0]()
    await reading
    assert len(gate.turns) == 1, "one turn an answer"


async def test_a_list_without_pages_takes_a_turn_for_each_slice_and_a_page_is_no_longer_than_asked(
    server: Server, client: ApiClient
) -> None:
    objects, gate = [thing(f"n{number}", number + 1) for number in range(5 * BATCH)], Gate(is_open=True)
    client.schedule_input(gate)
    every = answers(listing(1, *objects))
    server.script = [answers(listing(1, objects[0], continues="t")), refuses(410, "Expired"), every]
    turns_when_changed: list[int] = []
    reflector = Reflector(client, "/x", on_change=lambda _key, _item: turns_when_changed.append(len(gate.turns)))
    following = asyncio.create_task(reflector.run())
    assert await reflector.wait_synced(60)
    await cancel([following])
    assert turns_when_changed[0] >= 3 + len(objects) // BATCH
    with pytest.raises(Malformed, match="more objects in a page than were asked for"):
        await page(client)
