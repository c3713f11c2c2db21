"""Tenants' API servers take turns, and take at most half of the event loop's time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from polling import until
from scripted import Gate, answers, event, listing, serving, status_object, streams, thing
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


async def flooded(
    tenants: dict[str, int], honest: Callable[[InputScheduler, list[str]], Awaitable[None]], *, clusters: int = 1
) -> list[str]:
    """Run readers of hostile namespaces beside an honest task; return whose the turns were."""
    scheduler, turns = InputScheduler(), list[str]()
    floods = [
        asyncio.create_task(
            flood(scheduler.cluster(name, f"{name}/{number % clusters}"), lambda name=name: turns.append(name))
        )
        for name, readers in tenants.items()
        for number in range(readers)
    ]
    try:
        await advance(1)
        turns.clear()
        await honest(scheduler, turns)
    finally:
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
    return turns


def test_between_two_turns_of_a_namespace_every_other_gets_at_most_one() -> None:
    async def honest(scheduler: InputScheduler, turns: list[str]) -> None:
        mine = scheduler.cluster("honest", "honest/c")
        for _ in range(20):
            await mine.turn()
            turns.append("honest")

    turns = run_virtually(flooded({"a": 1, "b": 10, "c": 100, "d": 1000}, honest))
    rounds = " ".join(turns).split("honest")[:-1]
    assert len(rounds) == 20
    assert all(count == 1 for each in rounds for count in Counter(each.split()).values())
    assert all(set(each.split()) == {"a", "b", "c", "d"} for each in rounds[1:])


def test_between_two_turns_of_a_cluster_every_other_of_its_namespace_gets_at_most_one() -> None:
    async def honest(scheduler: InputScheduler, turns: list[str]) -> None:
        mine = scheduler.cluster("a", "a/honest")
        for _ in range(20):
            await mine.turn()
            turns.append("honest")

    turns = run_virtually(flooded({"a": 100}, honest, clusters=3))
    assert all(len(each.split()) <= 3 for each in " ".join(turns).split("honest"))


def test_all_tenants_input_together_takes_at_most_half_of_the_loops_time() -> None:
    spent = 0.0

    async def flood_for(seconds: float) -> float:
        nonlocal spent
        scheduler = InputScheduler()

        def record() -> None:
            nonlocal spent
            spent += PIECE

        floods = [asyncio.create_task(flood(scheduler.cluster(f"n{each}", "c"), record)) for each in range(50)]
        began = now()
        await advance(seconds)
        took = now() - began
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        return took

    took = run_virtually(flood_for(60))
    assert 0.4 * took <= spent <= 0.5 * took + 2 * PIECE


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


async def pages(client: ApiClient) -> None:
    async for page in client.pages("/api/v1/things"):
        assert page["items"]


async def refusal(client: ApiClient) -> None:
    with pytest.raises(Forbidden):
        await client.get("/api/v1/things/b")


async def events(client: ApiClient) -> None:
    async with aclosing(client.watch("/api/v1/things", {"resourceVersion": "1"})) as watch:
        assert await anext(watch)


async def one(client: ApiClient) -> None:
    assert await client.get("/api/v1/things/a") == thing("a", 1)


ANSWERS = {
    "an object": (answers(json.dumps(thing("a", 1)).encode()), one),
    "a page": (answers(json.dumps(listing(1, thing("a", 1))).encode()), pages),
    "a refusal": (answers(json.dumps(status_object(403, "Forbidden")).encode(), status=403), refusal),
    "an event": (streams(event("ADDED", thing("a", 2))), events),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_nothing_that_a_tenants_server_sends_is_parsed_before_its_turn(tmp_path: Path, kind: str) -> None:
    answer, read = ANSWERS[kind]
    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
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
    tmp_path: Path,
) -> None:
    objects = [thing(f"n{number}", number + 1) for number in range(5 * BATCH)]
    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        gate = Gate(is_open=True)
        client.schedule_input(gate)
        gone = answers(json.dumps(status_object(410, "Expired")).encode(), status=410)
        first = answers(json.dumps(listing(1, objects[0], continues="t")).encode())
        server.script = [first, gone, answers(json.dumps(listing(1, *objects)).encode())]
        turns_when_changed: list[int] = []
        reflector = Reflector(client, "/x", on_change=lambda _key, _item: turns_when_changed.append(len(gate.turns)))
        following = asyncio.create_task(reflector.run())
        assert await reflector.wait_synced(60)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert turns_when_changed[0] >= 3 + len(objects) // BATCH
        server.script = [answers(json.dumps(listing(1, *objects)).encode())]
        with pytest.raises(Malformed, match="more objects in a page than were asked for"):
            assert [page async for page in client.pages("/x")]
