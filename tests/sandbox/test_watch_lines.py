"""What a watch of the sandbox's API server tells when several things happen in the same turn of the event loop."""

from __future__ import annotations

import asyncio
import json

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.store import Store
from nodeattest_sandbox.apiserver.watch import WatchRequest, watch_lines

KIND = Kind("", "v1", "things", "Thing", namespaced=False)
SECONDS = 0.02


async def test_a_change_in_the_moment_in_which_a_watch_ends_is_told_or_left_to_the_next_one() -> None:
    store = Store()
    store.put(KIND.collection, {"metadata": {"name": "before"}})
    loop = asyncio.get_running_loop()
    begun = loop.time()

    def keep_the_loop_busy() -> None:
        while loop.time() < begun + 3 * SECONDS:
            pass

    loop.call_later(SECONDS / 2, keep_the_loop_busy)
    late: JsonMap = {"metadata": {"name": "late"}}
    loop.call_later(1.5 * SECONDS, store.put, KIND.collection, late)
    asked = WatchRequest(KIND, "", "", None, store.version, bookmarks=True, timeout=SECONDS, bookmark_interval=60)
    told = [json.loads(line) async for line in watch_lines(store, asked)]
    names = [event["object"]["metadata"].get("name") for event in told]
    reached = [int(event["object"]["metadata"]["resourceVersion"]) for event in told]
    assert "late" in names or max(reached, default=0) < store.version
