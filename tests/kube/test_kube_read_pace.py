"""Answers of tenants' API servers are parsed at a rate: each tenant has its own."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack, aclosing, nullcontext
from itertools import count
from pathlib import Path

import pytest
from aiohttp import web
from scripted import answers, event, listing, serving, status_object, streams, thing
from virtual import advance, now, run_virtually

from nodeattest_kube.client import ApiClient, Forbidden, TooLarge
from nodeattest_kube.jsontypes import JsonObject, JsonValue, check_value_count
from nodeattest_kube.paging import TENANT
from nodeattest_kube.read_pace import BURST, EVENT, OBJECT, RATE, Pace, ReadPace, parsing_cost, reading_cost


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def fat(values: int = 100_000) -> bytes:
    return json.dumps({f"v{number}": "" for number in range(values)}).encode()


def cost_of(document: bytes) -> int:
    return reading_cost(len(document)) + parsing_cost(document)


def readers(clock: Clock, *tenants: str) -> list[Pace]:
    """Return the pace of one client of each; the same tenant may have several."""
    pace = ReadPace(clock=lambda: clock.now, sleep=clock.sleep)
    return [pace.of(tenant) for tenant in tenants]


def test_values_cost_more_than_text() -> None:
    assert parsing_cost(fat()) > 2 * reading_cost(len(fat()))
    assert parsing_cost(b'"' + b"x" * 1000 + b'"') == 0


def test_bytes_that_come_one_by_one_cost_more_than_together() -> None:
    assert 100 * reading_cost(1) > 10 * reading_cost(100)


async def test_a_tenant_that_reads_without_end_waits_and_delays_no_other() -> None:
    clock, cost = Clock(), cost_of(fat())
    flood, honest = readers(clock, "a", "b")
    for _ in range(100):
        await flood(cost)
    assert clock.now >= (100 * cost - BURST) / RATE - 1
    before = clock.now
    for _ in range(BURST // 2 // cost):
        await honest(cost)
    assert clock.now == before
    clock.now += 3600
    before = clock.now
    await flood(cost)
    assert clock.now == before, "who was silent for long may read at once"


async def test_a_tenant_that_owes_nothing_any_more_is_forgotten() -> None:
    clock = Clock()
    pace = ReadPace(clock=lambda: clock.now, sleep=clock.sleep)
    for number in range(100):
        await pace.of(f"tenant-{number}")(1000)
    assert pace.tenants <= 100
    clock.now += 3600
    await pace.of("last")(BURST)
    assert pace.tenants == 1


async def test_one_cluster_that_floods_leaves_half_of_its_tenants_rate_to_the_tenants_others() -> None:
    clock, cost = Clock(), cost_of(fat())
    flood, sibling = readers(clock, "a", "a")
    for _ in range(100):
        await flood(cost)
    before = clock.now
    for _ in range(BURST // 2 // cost):
        await sibling(cost)
    assert clock.now == before


async def test_a_cluster_alone_reads_at_its_tenants_whole_rate() -> None:
    clock, cost = Clock(), cost_of(fat())
    alone, _silent = readers(clock, "a", "a")
    for _ in range(100):
        await alone(cost)
    assert clock.now <= 100 * cost / RATE


async def test_a_cluster_that_read_alone_for_long_has_its_half_once_a_sibling_floods() -> None:
    clock, cost = Clock(), cost_of(fat())
    alone, flood = readers(clock, "a", "a")
    for _ in range(100):
        await alone(cost)
    before, turns = clock.now, 20
    for _ in range(turns):
        await alone(cost)
        await flood(cost)
    assert clock.now - before <= 2 * turns * cost / RATE + 1


def test_many_reads_at_once_of_a_flooding_cluster_delay_its_sibling_by_one_of_them() -> None:
    async def main() -> None:
        pace = ReadPace(clock=now, sleep=advance)
        flood, sibling = pace.of("a"), pace.of("a")
        cost, worst = 6 * RATE, 0.0  # an answer of 3 MiB that is one text of commas
        reads = [asyncio.ensure_future(flood(cost)) for _ in range(8)]
        while not all(read.done() for read in reads):
            begun = now()
            await sibling(100)
            worst = max(worst, now() - begun)
            await advance(0.1)
        assert now() >= 8 * cost / (RATE / 2) - 2 * BURST / RATE, "the flood got more than its half"
        assert worst <= (cost - BURST) / RATE + 0.1

    run_virtually(main())


class Charges:
    """A pace that lets everything pass and keeps what it cost whoever made it; not what connections take (measured)."""

    def __init__(self) -> None:
        self.costs: list[int] = []
        self._reader = asyncio.current_task()

    async def __call__(self, cost: int) -> None:
        if asyncio.current_task() is self._reader:
            self.costs.append(cost)


async def test_every_byte_of_lists_reads_refusals_and_watches_and_every_value_is_charged(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        charges = Charges()
        client.limit_reading(charges)
        one, page = json.dumps(thing("a", 1)).encode(), json.dumps(listing(1, thing("a", 1))).encode()
        refused = json.dumps(status_object(403, "Forbidden")).encode()
        events = [event("ADDED", thing(name, 2)) for name in ("a", "b")]
        server.script = [answers(one), answers(page), answers(refused, status=403), streams(*events)]
        await client.get("/api/v1/things/a")
        assert [page async for page in client.pages("/api/v1/things")]
        with pytest.raises(Forbidden):
            await client.get("/api/v1/things/b")
        async with aclosing(client.watch("/api/v1/things", {"resourceVersion": "1"})) as watch:
            assert len([each async for each in watch]) == 2
    parsed = sum(map(parsing_cost, (one, page, refused, *events))) + OBJECT + 2 * EVENT
    together = sum(map(reading_cost, map(len, (one, page, refused, *events))))
    alone = sum(map(len, (one, page, refused, *events))) * (reading_cost(1) - reading_cost(0)) + 4 * reading_cost(0)
    assert alone + parsed <= sum(charges.costs) <= together + parsed, "events may come together"


async def test_blank_lines_of_a_watch_are_charged_like_events(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        charges = Charges()
        client.limit_reading(charges)
        server.script = [streams(b"\n" * 1000, event("ADDED", thing("a", 2)))]
        async with aclosing(client.watch("/api/v1/things", {"resourceVersion": "1"})) as watch:
            assert len([each async for each in watch]) == 1
    assert sum(charges.costs) >= 1001 * EVENT


async def test_chunks_of_one_byte_are_charged_each(tmp_path: Path) -> None:
    async def in_chunks(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for byte in b'{"a":"%s"}' % (b"b" * 500):
            await response.write(bytes([byte]))
        return response

    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        charges = Charges()
        client.limit_reading(charges)
        server.script = [in_chunks]
        assert await client.get("/x") == {"a": "b" * 500}
    assert sum(charges.costs) >= 500 * (reading_cost(0, 1) - reading_cost(0, 0))


def test_a_document_that_is_looked_through_twice_and_numbers_with_points_cost_more() -> None:
    plain, points = b'{"a":[1,2,3],"b":"x"}', b'{"a":[1.5,2.5,3.5],"b":"x"}'
    assert parsing_cost(points) > 2 * parsing_cost(plain)
    assert parsing_cost(plain.replace(b"x", rb"\ud83d\ude00")) == 2 * parsing_cost(plain)


async def test_others_get_a_turn_however_small_the_pieces_are() -> None:
    turns = 0

    async def sleep(_seconds: float) -> None:
        nonlocal turns
        turns += 1

    pace = ReadPace(clock=lambda: 0.0, sleep=sleep).of("a")
    for _ in range(1000):
        await pace(EVENT)
    assert turns >= 1000 * EVENT / 10_000_000


async def test_an_answer_that_is_refused_for_its_size_was_charged(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        charges = Charges()
        client.limit_reading(charges)
        server.script = [answers(b" " * (TENANT.object.bytes + (1 << 20)))]
        with pytest.raises(TooLarge):
            await client.get("/api/v1/things/a")
    assert sum(charges.costs) >= reading_cost(TENANT.object.bytes)


def page_of(values: int, continues: str) -> bytes:
    """Return a page of one object of so many values."""
    head = b'{"metadata":{"resourceVersion":"1","continue":"%s"},"items":[' % continues.encode()
    return head + b'{"metadata":{"name":"a"},"fat":[' + b",".join([b'""'] * (values - 20)) + b"]}]}"


@pytest.mark.parametrize("values", [TENANT.page.values, TENANT.page.values + 100])
async def test_a_tenants_answer_is_parsed_in_pieces_of_bounded_size(tmp_path: Path, values: int) -> None:
    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        client.limit_reading(Charges())
        server.script = [answers(page_of(values, ""))]
        fits = values <= TENANT.page.values
        with nullcontext() if fits else pytest.raises(TooLarge):
            assert [page async for page in client.pages("/x", limit=1)]
        server.script = [streams(event("ADDED", thing("a", 1)).replace(b"{", page_of(values, "")[:-1] + b",", 1))]
        with nullcontext() if fits else pytest.raises(TooLarge):
            async with aclosing(client.watch("/x", {"resourceVersion": "1"})) as watch:
                assert [each async for each in watch]


async def test_an_honest_answer_waits_for_a_few_pages_of_ten_hostile_clusters_at_most(tmp_path: Path) -> None:
    document, now, held = page_of(TENANT.page.values, "on"), 0.0, asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds:
            await held.wait()

    pace, parsed = ReadPace(clock=lambda: now, sleep=sleep), Counter[str]()
    numbers = count()

    async def endless(_request: web.Request) -> web.Response:
        return web.Response(body=document.replace(b'"on"', b'"%d"' % next(numbers), 1), content_type="application/json")

    async def follow(client: ApiClient) -> None:
        async for _page in client.pages("/x"):
            parsed["hostile"] += 1

    async with serving(tmp_path) as server, AsyncExitStack() as stack:
        server.script = [endless]
        clients = [await stack.enter_async_context(ApiClient.from_kubeconfig(server.kubeconfig())) for _ in range(11)]
        honest, *hostile = clients
        honest.limit_reading(pace.of("honest"))
        for client in hostile:
            client.limit_reading(pace.of("hostile"))
        tasks = [asyncio.create_task(follow(client)) for client in hostile]
        try:
            async with aclosing(honest.pages("/x")) as pages:
                for _ in range(BURST // cost_of(document) // 2):
                    await anext(pages)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert parsed["hostile"] <= BURST // cost_of(document) + 1


async def test_honest_pages_of_a_tenant_are_far_below_the_limit(tmp_path: Path) -> None:
    fields: JsonObject = {f"f:field{number}": {} for number in range(20)}
    managed: list[JsonValue] = [{"manager": "m", "fieldsV1": {"f:spec": fields}}] * 3
    approved: list[JsonValue] = [{"type": "Approved", "status": "True"}] * 2
    request: JsonObject = {
        "metadata": {"name": "a", "managedFields": managed},
        "spec": {"request": "x" * 12_000, "groups": ["g", "h", "i"], "usages": ["u", "v"]},
        "status": {"conditions": approved, "certificate": "x" * 3_000},
    }
    page = json.dumps({"items": [request] * TENANT.objects}).encode()
    assert check_value_count(page, TENANT.page.values // 2)
    assert len(page) <= TENANT.page.bytes // 1.5
    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        client.limit_reading(Charges())
        server.script = [answers(page)]
        assert [page async for page in client.pages("/x")]
        assert [each.query["limit"] for each in server.requests] == ["100"]
