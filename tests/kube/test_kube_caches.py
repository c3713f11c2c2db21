"""The controller's caches: what they leave out of what the API server sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from scripted import Server, answers, event, listing, streams, thing

from nodeattest_controller.runtime.informers import InformerSet, SharedTexts, without_managed_fields
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject, JsonValue, dig_text
from nodeattest_kube.memory_budget import MemoryPool
from nodeattest_kube.reflector import Reflector

LEAF = st.none() | st.booleans() | st.integers() | st.text()
ANY = st.recursive(LEAF, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(), one, max_size=3))


def written(name: str, version: int) -> JsonObject:
    """Make an object as API servers send it."""
    item = thing(name, version, uid=f"u-{name}")
    meta = item["metadata"]
    assert isinstance(meta, dict)
    fields: list[JsonValue] = [{"manager": "capi", "fieldsV1": {"f:spec": {}}}]
    return {**item, "metadata": {**meta, "managedFields": fields}}


async def test_no_cache_keeps_who_wrote_which_field(server: Server, client: ApiClient) -> None:
    server.script[:] = [answers(listing(5, written("old", 1))), streams(event("ADDED", written("new", 6)))]
    seen: asyncio.Queue[JsonObject] = asyncio.Queue()
    caches: asyncio.Queue[Reflector] = asyncio.Queue()

    async def follow() -> None:
        async with asyncio.TaskGroup() as tasks:
            started = InformerSet(client, tasks, MemoryPool(1 << 20)).start(
                "things", "/x", lambda _key, item: seen.put_nowait(item or {})
            )
            caches.put_nowait(started)

    following = asyncio.create_task(follow())
    told = [await asyncio.wait_for(seen.get(), 60) for _ in range(2)]
    held = list((await caches.get()).values())
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    kept = [thing("old", 1, uid="u-old"), thing("new", 6, uid="u-new")]
    assert told == kept
    assert held == kept


@given(ANY)
def test_whatever_metadata_is_comes_through_but_for_that(value: JsonValue) -> None:
    expected = {k: v for k, v in value.items() if k != "managedFields"} if isinstance(value, dict) else value
    assert without_managed_fields({"kind": "Thing", "metadata": value}) == {"kind": "Thing", "metadata": expected}


@given(ANY)
def test_an_object_with_shared_strings_is_equal_to_what_it_was(value: JsonValue) -> None:
    assert SharedTexts().share({"kind": "Thing", "spec": value}) == {"kind": "Thing", "spec": value}


def strings_of(value: JsonValue) -> Iterator[str]:
    """Yield every key and text of a value."""
    if isinstance(value, dict):
        yield from value
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    yield from (each for member in members for each in strings_of(member))
    if isinstance(value, str):
        yield value


def test_objects_that_differ_in_one_text_have_all_others_in_common() -> None:
    """What 5,000 Machines take is mostly keys and texts that all of them have."""
    texts = SharedTexts()
    machines = [
        texts.share(json.loads(json.dumps({"kind": "Machine", "metadata": {"uid": f"u-{number}"}, "spec": [{}]})))
        for number in range(100)
    ]
    assert len({id(each) for machine in machines for each in strings_of(machine)}) == 5 + 100


def test_texts_of_few_objects_are_forgotten_and_those_of_many_are_not() -> None:
    texts = SharedTexts(most=10)
    common = [texts.share(json.loads(json.dumps({"kind": "Machine", "uid": f"u-{number}"}))) for number in range(1000)]
    assert len({id(each["kind"]) for each in common}) == 1
    assert len(texts) <= 20


async def test_what_its_reader_has_taken_of_an_object_need_not_stay(server: Server, client: ApiClient) -> None:
    server.script[:] = [answers(listing(5, thing("old", 1))), streams(event("ADDED", thing("new", 6)))]
    seen: asyncio.Queue[JsonObject] = asyncio.Queue()
    reflector = Reflector(
        client,
        "/x",
        on_change=lambda _key, item: seen.put_nowait(item or {}),
        rest=lambda item: {"named": dig_text(item, "metadata", "name")},
    )
    reflector.index("name", lambda item: [dig_text(item, "named") or dig_text(item, "metadata", "name")])
    following = asyncio.create_task(reflector.run())
    told = [await asyncio.wait_for(seen.get(), 60) for _ in range(2)]
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    assert told == [thing("old", 1), thing("new", 6)]
    assert list(reflector.values()) == [{"named": "old"}, {"named": "new"}]
    assert reflector.by_index("name", "old") == [{"named": "old"}]


def test_an_object_that_is_nested_deeply_is_kept_as_it_is() -> None:
    deep: JsonValue = "end"
    for _ in range(500):
        deep = [deep]
    assert SharedTexts().share({"spec": deep}) == {"spec": deep}
