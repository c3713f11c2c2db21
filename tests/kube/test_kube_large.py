"""Answers that are larger than what we hold: fat collections are read all the same, and nothing hostile is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import aclosing, nullcontext
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from scripted import Server, answers, event, kubeconfig, serving, streams, thing

from nodeattest_kube.answers import (
    OBJECT,
    PAGE,
    TENANT,
    LineBuffer,
)
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, TooLarge, Unreachable
from nodeattest_kube.input_scheduler import InputScheduler
from nodeattest_kube.store import MemoryBudget
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
