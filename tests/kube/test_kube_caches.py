"""The controller's caches: what they leave out of what the API server sends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from scripted import Server, answers, event, listing, streams, thing

from nodeattest_controller.runtime.informers import InformerSet, without_managed_fields
from nodeattest_kube.client import ApiClient
from nodeattest_kube.memory_budget import MemoryPool
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.values import JsonObject, JsonValue

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
