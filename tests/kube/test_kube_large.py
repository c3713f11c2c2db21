"""Answers that are larger than what we hold: fat collections are read all the same, and nothing hostile is kept."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import aclosing, nullcontext
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from polling import until
from scripted import Handler, Server, answers, event, kubeconfig, listing, refuses, serving, streams, thing

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, TooLarge, Unreachable
from nodeattest_kube.input_scheduler import InputScheduler
from nodeattest_kube.list_watch import (
    OBJECT,
    PAGE,
    TENANT,
    LineBuffer,
)
from nodeattest_kube.memory_budget import MemoryBudget, MemoryPool
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject, JsonValue

BOMB = b'{"a":[' + b"{}," * 900_000 + b"{}]}"
"""Less than 3 MiB, and 65 MB once parsed."""


class Collection:
    """A collection that is listed as a real API server lists it: chunked, and as tables."""

    def __init__(self, *items: JsonObject) -> None:
        self.items = [json.dumps(item) for item in items]
        self.names = [text(item, "metadata", "name") for item in items]
        self.limits: list[int] = []
        self.rows: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Answer one list request; watches end at once."""
        if "watch" in request.query:
            return web.Response()
        limit, start = int(request.query.get("limit", "0")), int(request.query.get("continue", "0"))
        end = min(start + limit, len(self.items)) if limit else len(self.items)
        follows = str(end) if end < len(self.items) else ""
        head = {"resourceVersion": "9", "continue": follows}
        if "as=Table" in request.headers["Accept"]:
            assert request.query["includeObject"] == "None"
            self.rows += self.names[start:end]
            rows = [{"cells": [name]} for name in self.names[start:end]]
            return web.json_response({"kind": "Table", "metadata": head, "rows": rows})
        self.limits.append(limit)
        body = f'{{"kind":"ThingList","apiVersion":"v1","metadata":{json.dumps(head)},"items":['
        return web.Response(text=body + ",".join(self.items[start:end]) + "]}", content_type="application/json")


def things(count: int, size: int, *, start: int = 0) -> list[JsonObject]:
    return [thing(f"t{number:03}", number + 1, fat="x" * size) for number in range(start, start + count)]


async def names_in(client: ApiClient, limit: int = 500, skipped: Callable[[], None] | None = None) -> list[str]:
    found: list[str] = []
    async for page in client.pages("/x", limit=limit, skipped=skipped):
        items = page["items"]
        assert isinstance(items, list)
        found += [text(item, "metadata", "name") for item in items]
    return found


async def test_a_collection_larger_than_an_answer_may_be_is_listed_in_smaller_pages(
    server: Server, client: ApiClient
) -> None:
    collection = Collection(*things(40, 500_000))
    server.script = [collection]
    assert await names_in(client) == collection.names
    assert collection.limits == [500, 250, 125, 62, 31, 62]
    assert not collection.rows


@pytest.mark.parametrize("kind", ["bytes", "values"])
async def test_an_object_that_is_too_large_alone_is_passed_over(server: Server, client: ApiClient, kind: str) -> None:
    many: list[JsonValue] = [0] * PAGE.values
    fat: JsonValue = "x" * PAGE.bytes if kind == "bytes" else many
    collection = Collection(*things(5, 10), thing("t005-bad", 6, fat=fat), *things(5, 10, start=6))
    server.script = [collection]
    told: list[int] = []
    honest = [name for name in collection.names if name != "t005-bad"]
    assert await names_in(client, 4, lambda: told.append(1)) == honest
    assert (told, collection.rows) == ([1], ["t005-bad"])
    with pytest.raises(TooLarge):
        await names_in(client, 4)


async def test_an_answer_of_too_many_values_is_refused_before_it_is_parsed(server: Server, client: ApiClient) -> None:
    server.script = [answers(BOMB)]
    for ask in (client.get("/x"), client.create("/x", {})):
        with pytest.raises(TooLarge, match=f"{OBJECT.values} values"):
            await ask


@pytest.mark.parametrize(
    "large",
    [event("ADDED", thing("b", 3, fat="x" * OBJECT.bytes)), b'{"type":"ADDED","object":' + BOMB + b"}\n"],
    ids=["bytes", "values"],
)
async def test_a_watch_event_that_is_too_large_is_passed_over(server: Server, client: ApiClient, large: bytes) -> None:
    script = streams(event("ADDED", thing("a", 2)), large + event("ADDED", thing("c", 4)))
    server.script = [script]
    told: list[int] = []
    seen = [each.object async for each in client.watch("/x", skipped=lambda: told.append(1))]
    assert seen == [thing("a", 2), thing("c", 4)]
    assert told == [1]
    with pytest.raises(TooLarge):
        async for _event in client.watch("/x"):
            pass


def test_a_line_that_never_ends_is_not_waited_for() -> None:
    told: list[int] = []
    assembler = LineBuffer(10, lambda: told.append(1))
    assert assembler.feed(b"x" * 70 + b"\nok\n") == [b"ok"]
    assert told == [1]
    with pytest.raises(TooLarge, match="10 bytes"):
        assembler.feed(b"x" * 90)


@pytest.mark.parametrize("host", ["a" * 64 + ".test", "a..test", ".test", "999.999.999.999"])
async def test_a_host_name_that_cannot_be_looked_up_is_unreachable(host: str) -> None:
    async with ApiClient.from_kubeconfig(kubeconfig({"server": f"https://{host}"}, {}), request_timeout=60.0) as client:
        with pytest.raises(Unreachable):
            await client.get("/x")


@pytest.mark.parametrize("code", [10**18, -1, 0, 200, True, "410", None])
async def test_an_error_event_with_a_strange_code_is_an_error_of_the_server(
    server: Server, client: ApiClient, code: JsonValue
) -> None:
    server.script = [streams(event("ERROR", {"kind": "Status", "code": code}))]
    with pytest.raises(ApiError) as caught:
        async for _event in client.watch("/x"):
            pass
    assert caught.value.status == 500


class Follower:
    """A reflector on virtual time that stops at its n-th wait."""

    def __init__(self, client: ApiClient, *, max_bytes: int | MemoryPool = 1 << 30, max_objects: int = 1000) -> None:
        self.now = 0.0
        self.told: list[tuple[str, bool]] = []
        self.waits = 0
        self.reflector = Reflector(
            client,
            "/api/v1/things",
            on_change=lambda key, item: self.told.append((key, item is not None)),
            clock=lambda: self.now,
            random=lambda: 0.0,
            sleep=self._sleep,
            max_bytes=max_bytes,
            max_objects=max_objects,
        )

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waits -= 1
        if self.waits <= 0:
            await asyncio.Event().wait()

    async def follow(self, server: Server, *script: Handler, waits: int = 1) -> list[str]:
        """Run until the n-th wait; return the names that are in the cache."""
        server.script, self.waits = list(script), waits
        running = asyncio.create_task(self.reflector.run())
        await until(lambda: self.waits <= 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return sorted(text(item, "metadata", "name") for item in self.reflector.values())


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records if record.name == "nodeattest_kube.reflector"]


async def test_a_reflector_that_fails_says_so_once_a_minute_in_its_own_words(
    server: Server, client: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    follower = Follower(client)
    where = f"cannot follow {server.url}/api/v1/things: "
    await follower.follow(server, refuses(403, "Forbidden", "secret words"), waits=6)
    assert follower.now < 60
    assert logged(caplog) == [where + "403 Forbidden"]
    await follower.follow(server, answers(b"<html>secret words"), waits=2)
    assert follower.now > 60
    assert len(logged(caplog)) == 2
    assert logged(caplog)[1].startswith(where + "200 MalformedAnswer: GET /api/v1/things: expected a JSON object")
    assert "secret" not in caplog.text


async def test_what_is_left_out_is_known_by_namespace_and_listed_again_in_a_while(
    server: Server, client: ApiClient
) -> None:
    blue, red = (thing("n", 2, namespace=name, fat="x" * 5000) for name in ("blue", "red"))
    follower = Follower(client, max_bytes=100_000)
    await follower.follow(server, answers(listing(1, blue)), streams(event("ADDED", red)), streams(), waits=2)
    assert follower.reflector.left_out == 2
    assert [follower.reflector.lacks_any_of(name) for name in ("blue", "red", "green")] == [True, True, False]
    assert ["watch" in request.query for request in server.requests] == [False, True, True]
    follower.now += 300
    await follower.follow(server, streams(), answers(listing(5, red)), streams(), waits=2)
    assert follower.reflector.left_out == 1
    assert not follower.reflector.lacks_any_of("blue")


async def test_after_an_event_that_was_too_large_the_collection_is_listed_again(
    server: Server, client: ApiClient
) -> None:
    large = event("MODIFIED", thing("a", 3, fat="x" * OBJECT.bytes))
    follower = Follower(client)
    script = (answers(listing(1, thing("a", 1))), streams(large + event("ADDED", thing("b", 4))))
    names = await follower.follow(server, *script, answers(listing(9, thing("b", 4))), streams(), waits=2)
    assert names == ["b"]
    assert follower.told == [("a", True), ("b", True), ("a", False)]
    assert follower.reflector.left_out == 0
    assert ["watch" in request.query for request in server.requests] == [False, True, False, True]


@pytest.mark.parametrize("name", ["a/b", "..", "../x", "n" * 1025])
async def test_an_object_that_no_path_can_name_is_passed_over(
    server: Server, client: ApiClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    follower = Follower(client)
    objects = [thing(name, 2), thing("a", 3, namespace=name), thing("c\\d", 4)]
    changes = [event("ADDED", item) for item in objects] + [event("DELETED", objects[0])]
    assert await follower.follow(server, answers(listing(1, *objects)), streams(*changes)) == ["c\\d"]
    assert follower.told == [("c\\d", True)]
    assert len(logged(caplog)[0]) < 300


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 2000)), max_size=50))
def test_no_more_is_shared_out_than_there_is(steps: list[tuple[str, int]]) -> None:
    ration = MemoryBudget(10_000)
    shares: dict[str, int] = {}
    for key, weight in steps:
        left = 10_000 - sum(shares.values()) + shares.get(key, 0)
        fits = weight * 64 <= left or weight <= shares.get(key, -1)
        assert ration.take(key, weight) == fits
        if fits:
            shares[key] = weight
        assert ration.left == 10_000 - sum(shares.values()) >= 0
    assert {key: ration.of(key) for key in shares} == shares


def page_of(values: int, continues: str) -> bytes:
    """Return a page of one object of so many values."""
    head = b'{"metadata":{"resourceVersion":"1","continue":"%s"},"items":[' % continues.encode()
    return head + b'{"metadata":{"name":"a"},"fat":[' + b",".join([b'""'] * (values - 20)) + b"]}]}"


@pytest.mark.parametrize("values", [TENANT.page.values, TENANT.page.values + 100])
async def test_a_tenants_answer_is_parsed_in_pieces_of_bounded_size(tmp_path: Path, values: int) -> None:
    async with serving(tmp_path) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        client.schedule_input(InputScheduler().cluster("a", "a/c"))
        server.script = [answers(page_of(values, ""))]
        fits = values <= TENANT.page.values
        with nullcontext() if fits else pytest.raises(TooLarge):
            assert [page async for page in client.pages("/x", limit=1)]
        server.script = [streams(event("ADDED", thing("a", 1)).replace(b"{", page_of(values, "")[:-1] + b",", 1))]
        with nullcontext() if fits else pytest.raises(TooLarge):
            async with aclosing(client.watch("/x", {"resourceVersion": "1"})) as watch:
                assert [each async for each in watch]
