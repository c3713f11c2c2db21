"""A cache that follows an API server through everything that one does: each case is a script and what is asked."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import pytest
from aiohttp import web
from polling import Turns, until
from scripted import (
    Handler,
    Server,
    answers,
    cut,
    event,
    forever,
    listing,
    refuses,
    status_object,
    streams,
    thing,
)

from nodeattest_kube.answers import OBJECT
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Malformed, WatchHung
from nodeattest_kube.kubeconfig import parse_kubeconfig
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.store import MemoryPool
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject

HELD = streams(then=forever)


class Rig:
    """A reflector on virtual time, with what it told and how long it waited."""

    def __init__(self, client: ApiClient, server: Server, **options: Any) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self.errors: list[ApiError | None] = []
        self.told: list[str] = []
        """Keys and versions, a dash for an object that is gone."""
        self._server = server
        self.reflector = Reflector(
            client,
            "/api/v1/things",
            query={"fieldSelector": "f"},
            on_change=self._on_change,
            clock=lambda: self.now,
            random=lambda: 0.0,
            sleep=self._sleep,
            **options,
        )

    def _on_change(self, key: str, item: JsonObject | None) -> None:
        assert self.reflector.get(key) == item  # The cache is never behind what it tells.
        self.told.append(f"{key} {text(item or {}, 'metadata', 'resourceVersion') or '-'}")

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.errors.append(self.reflector.last_error)
        self.now += seconds
        await asyncio.sleep(0)

    async def follow(self, *script: Handler | float) -> None:
        """Run until each of the script is answered and a watch is held; a number is a watch that lasts so long."""
        handlers = [each if callable(each) else streams(then=self.lasting(each)) for each in script]
        is_held = False

        async def hold(request: web.Request) -> web.StreamResponse:
            nonlocal is_held
            is_held, self.reflector.last_contact = True, float("-inf")
            return await HELD(request)

        self._server.script = [*handlers, hold]
        async with self.running():
            await until(lambda: is_held and self.reflector.last_contact > float("-inf"))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        task = asyncio.create_task(self.reflector.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def lasting(self, seconds: float) -> Any:
        async def hold(_request: web.Request) -> None:
            await asyncio.sleep(0.01)
            self.now += seconds

        return hold

    @property
    def names(self) -> list[str]:
        return sorted(text(item, "metadata", "name") for item in self.reflector.values())


@pytest.fixture
def rig(client: ApiClient, server: Server) -> Rig:
    return Rig(client, server)


async def test_list_then_watch_from_its_version_with_bookmarks(server: Server, rig: Rig) -> None:
    changes = event("MODIFIED", thing("b", 12)) + event("DELETED", thing("a", 13, namespace="n"))
    server.script = [
        answers(listing(10, thing("a", 3, namespace="n"), continues="t")),
        answers(listing(10, thing("b", 4))),
        streams(event("ADDED", thing("c", 11)), changes, event("BOOKMARK", thing("", 40)), then=rig.lasting(20.0)),
        HELD,
    ]
    assert not rig.reflector.synced
    async with rig.running():
        assert await rig.reflector.wait_synced(5)
        await until(lambda: len(server.requests) == 4)
    assert rig.told == ["n/a 3", "b 4", "c 11", "b 12", "n/a -"]
    assert rig.names == ["b", "c"]
    assert server.asked() == ["list:500", "list:500", "10", "40"]
    watch = server.requests[2].query
    assert (watch["fieldSelector"], watch["allowWatchBookmarks"]) == ("f", "true")
    assert 60 <= int(watch["timeoutSeconds"]) <= 90
    assert rig.waits == []  # A watch that lasted is resumed at once.


@dataclass
class Case:
    """A script, and what the reflector makes of it."""

    script: Sequence[Handler | float]
    asked: str
    told: list[str] | None = None
    waits: list[float] | None = None


EMPTY = answers(listing(1))
PAGE = answers(listing(1, continues="next"))
LONG_AGO = answers(listing(900))
ABC = answers(listing(5, thing("a", 1), thing("b", 2), thing("c", 3)))
AFTER_410 = answers(listing(9, thing("a", 1), thing("b", 8)))
TOLD_410 = ["a 1", "b 2", "c 3", "c -", "b 8"]
EXPIRED_EVENT = streams(event("ERROR", status_object(410, "Expired", "too old resource version")))
CUT = streams(then=cut)
BOOKMARK = streams(event("BOOKMARK", thing("", 2)))
A, HALF_B = event("ADDED", thing("a", 2)), event("ADDED", thing("b", 3))[:30]
NOT_BEHIND = answers(listing(2, thing("a", 2)))
FUTURE = refuses(504, "Timeout", "Too large resource version: 900, current: 7")
GIVEN_UP = "list:500 900 900 900 900 900 list:500 7"
BACK = answers(listing(7))
CASES = {
    "410 as an answer": Case([ABC, refuses(410, "Expired"), AFTER_410], "list:500 5 list:500 9", TOLD_410, [0.8]),
    "410 as an event": Case([ABC, EXPIRED_EVENT, AFTER_410], "list:500 5 list:500 9", TOLD_410, [0.8]),
    "410 within a list": Case([PAGE, refuses(410, "Expired"), EMPTY], "list:500 list:500 list:all 1", [], [0.8]),
    "Retry-After": Case([answers(b"{}", status=429, Retry_After="17"), EMPTY], "list:500 list:500 1", None, [17.0]),
    # The watch that lasted resets the back-off; the short one after it waits the first step again.
    "watches that end at once": Case(
        [EMPTY, *[BOOKMARK] * 6, 10.0, streams()],
        "list:500 1" + " 2" * 8,
        None,
        [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 0.8],
    ),
    "cut within an event": Case(
        [EMPTY, streams(A + HALF_B, then=cut), NOT_BEHIND, streams(A[:9]), NOT_BEHIND],
        "list:500 1 list:1 2 list:1 2",
        ["a 2"],
    ),
    "a version of the future": Case([LONG_AGO, *[FUTURE] * 5, BACK], GIVEN_UP),
    "watches without an event": Case([LONG_AGO, *[streams()] * 5, BACK], GIVEN_UP),
    **{
        f"not behind at {version[:9]}": Case([LONG_AGO, CUT, answers(listing(version))], "list:500 900 list:1 900")
        for version in ("900", "901", "opaque", "9" * 30, "\u0661")
    },
    **{
        f"away with {status}": Case(
            [LONG_AGO, CUT, refuses(status, "Away"), BACK, BACK], "list:500 900 list:1 list:1 list:500 7"
        )
        for status in (429, 502, 503)
    },
    **{
        f"no event: {line[:30]!r}": Case([EMPTY, streams(line)], "list:500 1 1", None, [0.8])
        for line in (
            b"<html>\n",
            b'{"type":"ADDED"}\n',
            b'{"type":"SURPRISE","object":{}}\n',
            b'{"type":"ADDED","object":{"metadata":{}}}\n',
            b'{"type":"ADDED","object":{"metadata":{"name":"x"}}}\n',
            b'{"type":"BOOKMARK","object":{}}\n',
            b"[]\n",
        )
    },
    **{
        f"no list: {name}": Case(
            [*[trouble] * 8, EMPTY], "list:500 " * 9 + "1", None, [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
        )
        for name, trouble in {
            "403": refuses(403, "Forbidden"),
            "500": refuses(500, "InternalError"),
            "html": answers(b"<html>", status=502),
            "truncated": answers(b'{"metadata": {"resour'),
            "empty": answers(b"{}"),
            "nameless": answers(listing(1, {"metadata": {}})),
            "an object": answers(b'{"metadata":{"resourceVersion":"1"},"items":{"a":1}}'),
            "no objects": answers(b'{"metadata":{"resourceVersion":"1"},"items":[1]}'),
            "cut": streams(b"{", then=cut),
        }.items()
    },
}


@pytest.mark.parametrize("name", CASES)
async def test_whatever_a_server_does_is_followed_with_the_fewest_requests(server: Server, rig: Rig, name: str) -> None:
    case = CASES[name]
    await rig.follow(*case.script)
    assert " ".join(server.asked()) == case.asked
    assert case.told is None or rig.told == case.told
    assert case.waits is None or rig.waits == case.waits
    assert rig.reflector.last_error is None


@pytest.mark.parametrize("trouble", [CUT, refuses(503, "ServiceUnavailable")], ids=["cut", "503"])
async def test_a_server_that_was_set_back_to_a_backup_is_listed_again(
    server: Server, rig: Rig, trouble: Handler
) -> None:
    before = answers(listing(900, thing("a", 880), thing("b", 890), thing("gone", 895)))
    after = answers(listing(891, thing("a", 880), thing("b", 890, content="written since"), thing("new", 891)))
    await rig.follow(before, trouble, after, after)
    assert server.asked() == ["list:500", "900", "list:1", "list:500", "891"]
    # The version 890 was given twice, to two contents of one object: what was known of versions says nothing now.
    assert text(rig.reflector.get("b") or {}, "content") == "written since"
    assert {"gone -", "b 890", "new 891"} <= set(rig.told[3:])


async def test_quiet_watches_that_the_server_ends_after_their_time_are_no_trouble(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """A server on which nothing happens sends no bookmarks (seen: one warning each 100 s for ever)."""
    await rig.follow(EMPTY, 60.0, 60.0, 60.0)
    assert rig.waits == []
    assert rig.reflector.last_contact >= 120
    assert not caplog.records


@pytest.mark.parametrize("bookmarks", [True, False])
async def test_a_watch_that_its_server_does_not_end_is_trouble_until_a_list_succeeded(
    server: Server, caplog: pytest.LogCaptureFixture, *, bookmarks: bool
) -> None:
    """Seen: watches that were granted and then told nothing counted as followed for ever."""

    async def hung(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            await asyncio.sleep(0.01)
            if bookmarks:
                await response.write(event("BOOKMARK", thing("", 1)))

    lasting = chain([0], repeat(300))  # the first watch lasts two seconds
    config = parse_kubeconfig(server.kubeconfig())
    async with ApiClient(config, watch_margin=2.0, randint=lambda _least, _most: next(lasting)) as client:
        rig = Rig(client, server)
        await rig.follow(EMPTY, hung, refuses(500, "InternalError"), answers(listing(3, thing("a", 2))))
    assert rig.reflector.hung is rig.reflector.last_error is None
    assert rig.told == ["a 2"]
    assert [type(error) for error in rig.errors] == [WatchHung, ApiError]
    assert server.asked() == ["list:500", "1", "list:500", "list:500", "3"]
    ours = [record.levelname for record in caplog.records if record.name.startswith("nodeattest")]
    assert ours == ["WARNING"]  # of the refused list


async def test_an_index_follows_its_objects(rig: Rig) -> None:
    rig.reflector.index("owner", lambda item: [text(item, "owner")] if "owner" in item else [])
    changes = event("MODIFIED", thing("a", 6, owner="y")), event("DELETED", thing("b", 7, owner="x"))
    before = listing(5, thing("a", 1, owner="x"), thing("b", 2, owner="x"), thing("c", 3))
    await rig.follow(answers(before), streams(*changes))
    assert rig.reflector.by_index("owner", "x") == []
    assert rig.reflector.by_index("owner", "y") == [thing("a", 6, owner="y")]
    rig.reflector.index("name", lambda item: [text(item, "metadata", "name")])  # Over what is there already.
    assert rig.reflector.by_index("name", "c") == [thing("c", 3)]
    with pytest.raises(ValueError, match="exists"):
        rig.reflector.index("name", lambda _item: [])


async def test_a_transform_sees_each_version_once_and_may_drop_anything(server: Server, client: ApiClient) -> None:
    seen: list[str] = []

    def keep_little(item: JsonObject) -> JsonObject:
        seen.append(text(item, "metadata", "resourceVersion"))
        return {"small": True}

    rig, gone = Rig(client, server, transform=keep_little), event("ERROR", status_object(410, "Gone"))
    changes = streams(event("ADDED", thing("b", 6)), gone)
    await rig.follow(answers(listing(5, thing("a", 1))), changes, answers(listing(7, thing("a", 1), thing("b", 6))))
    assert seen == ["1", "6"]
    assert rig.reflector.values() == [{"small": True}] * 2


async def test_a_large_burst_in_odd_chunks_arrives_whole_and_lets_others_run(server: Server, client: ApiClient) -> None:
    lines = b"".join(event("ADDED", thing(f"csr-{n}", n + 2, request="A" * 4500)) for n in range(3909))
    chunks = [lines[start : start + 2_500_001] for start in range(0, len(lines), 2_500_001)]
    server.script = [EMPTY, streams(*chunks, then=forever)]
    async with Turns() as turns:
        handled_at: list[int] = []
        reflector = Reflector(client, "/x", on_change=lambda _key, _item: handled_at.append(turns.count))
        task = asyncio.create_task(reflector.run())
        await until(lambda: len(handled_at) == 3909)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert max(Counter(handled_at).values()) <= 100, "objects handled while no other task had a turn"


# Objects that are too many or too large, and trouble that is logged


@pytest.mark.parametrize("by", ["a list", "pages", "events"])
async def test_a_server_cannot_fill_the_cache_without_end(server: Server, client: ApiClient, by: str) -> None:
    flood = [thing(f"x{number}", number + 1) for number in range(11)]
    rig = Rig(client, server, max_objects=9)
    if by == "a list":
        await rig.follow(answers(listing(1, *flood)), EMPTY)
    elif by == "pages":
        await rig.follow(*[answers(listing(1, continues=f"t{number}")) for number in range(10)], EMPTY)
    else:
        await rig.follow(EMPTY, streams(*[event("ADDED", item) for item in flood]))
    assert isinstance(rig.errors[0], Malformed)
    assert len(rig.told) <= 10


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records if record.name == "nodeattest_kube.reflector"]


async def test_a_reflector_that_fails_says_so_once_a_minute_in_its_own_words(
    server: Server, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    where = f"cannot follow {server.url}/api/v1/things: "
    await rig.follow(*[refuses(403, "Forbidden", "secret words")] * 6, EMPTY)
    assert rig.now < 60
    assert logged(caplog) == [where + "403 Forbidden"]
    rig.now += 60
    await rig.follow(streams(b"<html>secret words\n"))
    [_, second] = logged(caplog)
    assert second.startswith(where + "200 MalformedAnswer: GET /api/v1/things: no watch event: expected JSON")
    assert "secret" not in caplog.text


def fat(name: str, version: int, namespace: str = "") -> JsonObject:
    return thing(name, version, namespace=namespace, fat="x" * 5000)


async def test_what_is_left_out_is_known_by_namespace_until_a_list_is_whole(server: Server, client: ApiClient) -> None:
    rig = Rig(client, server, max_bytes=100_000)
    await rig.follow(answers(listing(1, fat("n", 2, "blue"))), streams(event("ADDED", fat("n", 3, "red"))))
    assert rig.reflector.left_out == 2
    assert [rig.reflector.lacks_any_of(name) for name in ("blue", "red", "green")] == [True, True, False]
    assert server.asked() == ["list:500", "1", "3"], "it is not listed again at once"
    rig.now += 300
    await rig.follow(streams(), refuses(500, "InternalError"), answers(listing(5, fat("n", 3, "red"))))
    assert rig.reflector.left_out == 1
    assert [rig.reflector.lacks_any_of(name) for name in ("blue", "red")] == [False, True]


async def test_an_object_whose_new_version_has_no_room_is_not_kept_as_it_was(server: Server, client: ApiClient) -> None:
    rig = Rig(client, server, max_bytes=100_000)
    await rig.follow(answers(listing(1, thing("n", 1))), streams(event("MODIFIED", fat("n", 2))))
    assert (rig.told, rig.names) == (["n 1", "n -"], [])


async def test_while_a_list_fails_what_is_left_out_stays_known(server: Server, client: ApiClient) -> None:
    rig = Rig(client, server, max_bytes=100_000)
    await rig.follow(answers(listing(1, fat("n", 2, "blue"))))
    rig.now += 300
    server.script = [streams(), refuses(500, "InternalError")]
    async with rig.running():
        await until(lambda: len(rig.errors) >= 3)
        assert rig.reflector.lacks_any_of("blue")


async def test_a_list_that_fails_half_way_gives_back_its_memory_and_takes_none_of_what_is_kept(
    server: Server, client: ApiClient
) -> None:
    pool = MemoryPool(1_000_000)
    rig = Rig(client, server, max_bytes=pool)
    await rig.follow(answers(listing(2, fat("a", 2))))
    kept = pool.used
    half = answers(listing(5, thing("a", 3), fat("b", 4), continues="next"))
    used: list[int] = []

    async def after(_request: web.Request) -> web.StreamResponse:
        used.append(pool.used)
        return await answers(listing(9, fat("a", 2)))(_request)

    await rig.follow(refuses(410, "Expired"), half, refuses(500, "InternalError"), after)
    assert used == [kept]
    assert kept > 5000
    await rig.follow(refuses(410, "Expired"), answers(listing(9)))
    assert pool.used == 0


async def test_beyond_ten_thousand_namespaces_with_left_out_objects_each_may_lack_some(rig: Rig) -> None:
    nameless = [thing("..", 2, namespace=f"n{number}") for number in range(10_000)]
    await rig.follow(answers(listing(1, *nameless)))
    assert rig.reflector.lacks_any_of("another")


async def test_after_an_event_that_was_too_large_the_collection_is_listed_again(server: Server, rig: Rig) -> None:
    large = event("MODIFIED", thing("a", 3, fat="x" * OBJECT.bytes))
    changes = streams(large + event("ADDED", thing("b", 4)))
    await rig.follow(answers(listing(1, thing("a", 1))), changes, answers(listing(9, thing("b", 4))))
    assert rig.told == ["a 1", "b 4", "a -"]
    assert rig.reflector.left_out == 0
    assert server.asked() == ["list:500", "1", "list:500", "9"]


@pytest.mark.parametrize("name", ["a/b", "..", "../x", "n" * 1025])
async def test_an_object_that_no_path_can_name_is_passed_over(
    rig: Rig, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    objects = [thing(name, 2), thing("a", 3, namespace=name), thing("c\\d", 4)]
    changes = [event("ADDED", item) for item in objects] + [event("DELETED", objects[0])]
    await rig.follow(answers(listing(1, *objects)), streams(*changes))
    assert rig.told == ["c\\d 4"]
    assert len(logged(caplog)[0]) < 300
