from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import chain, repeat

import pytest
from aiohttp import web
from polling import Turns, until
from scripted import Handler, Server, answers, cut, event, listing, refuses, status_object, streams, thing

from nodeattest_kube.answers import OBJECT
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Malformed, WatchHung
from nodeattest_kube.kubeconfig import parse_kubeconfig
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.store import MemoryPool
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject


class Rig:
    """A reflector on virtual time, with what it told and how long it waited."""

    def __init__(
        self,
        client: ApiClient,
        *,
        transform: Callable[[JsonObject], JsonObject] = lambda item: item,
        max_bytes: int | MemoryPool = 1 << 30,
    ) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self._most_waits = sys.maxsize
        self.errors: list[ApiError | None] = []
        self.told: list[tuple[str, str | None]] = []
        self.reflector = Reflector(
            client,
            "/api/v1/things",
            query={"fieldSelector": "f"},
            on_change=self._on_change,
            clock=lambda: self.now,
            random=lambda: 0.0,
            sleep=self._sleep,
            transform=transform,
            max_bytes=max_bytes,
        )

    def _on_change(self, key: str, item: JsonObject | None) -> None:
        assert self.reflector.get(key) == item  # The cache is never behind what it tells.
        self.told.append((key, None if item is None else text(item, "metadata", "resourceVersion")))

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.errors.append(self.reflector.last_error)
        self.now += seconds
        await (asyncio.Event().wait() if len(self.waits) >= self._most_waits else asyncio.sleep(0))

    async def follow(self, server: Server, *script: Handler, waits: int = 1) -> list[str]:
        """Run until the n-th wait; return the names that are in the cache."""
        server.script, self._most_waits = list(script), len(self.waits) + waits
        async with self.running():
            await until(lambda: len(self.waits) >= self._most_waits)
        return sorted(text(item, "metadata", "name") for item in self.reflector.values())

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[None]]:
        task = asyncio.create_task(self.reflector.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    def lasting(self, seconds: float) -> Callable[[web.Request], Awaitable[None]]:
        """Let virtual time pass while the server holds a watch."""

        async def hold(_request: web.Request) -> None:
            await asyncio.sleep(0.01)
            self.now += seconds

        return hold


@pytest.fixture
def rig(client: ApiClient) -> Rig:
    return Rig(client)


async def forever(_request: web.Request) -> None:
    await asyncio.Event().wait()


EMPTY = answers(listing(1))
HELD = streams(then=forever)


def versions(server: Server) -> list[str]:
    """Tell what each request was: ``list`` or the version its watch started from."""
    return [
        request.query["resourceVersion"] if "watch" in request.query else "list:" + request.query.get("limit", "all")
        for request in server.requests
    ]


async def test_list_then_watch_from_its_version_with_bookmarks(server: Server, rig: Rig) -> None:
    server.script = [
        answers(listing(10, thing("a", 3, namespace="n"), continues="t")),
        answers(listing(10, thing("b", 4))),
        streams(
            event("ADDED", thing("c", 11)),
            event("MODIFIED", thing("b", 12)) + event("DELETED", thing("a", 13, namespace="n")),
            event("BOOKMARK", thing("", 40)),
            then=rig.lasting(20),
        ),
        HELD,
    ]
    assert not rig.reflector.synced
    async with rig.running():
        assert await rig.reflector.wait_synced(5)
        await rig.until(lambda: len(server.requests) == 4)
    assert rig.told == [("n/a", "3"), ("b", "4"), ("c", "11"), ("b", "12"), ("n/a", None)]
    assert sorted(text(item, "metadata", "name") for item in rig.reflector.values()) == ["b", "c"]
    assert versions(server) == ["list:500", "list:500", "10", "40"]
    watch = server.requests[2].query
    assert watch["fieldSelector"] == "f"
    assert watch["allowWatchBookmarks"] == "true"
    assert 60 <= int(watch["timeoutSeconds"]) <= 90
    assert rig.waits == []  # A watch that lasted is resumed at once.


@pytest.mark.parametrize(
    "gone",
    [refuses(410, "Expired"), streams(event("ERROR", status_object(410, "Expired", "too old resource version")))],
    ids=["answer", "event"],
)
async def test_410_lists_again_and_tells_only_the_difference(server: Server, rig: Rig, gone: Handler) -> None:
    server.script = [
        answers(listing(5, thing("a", 1), thing("b", 2), thing("c", 3))),
        gone,
        answers(listing(9, thing("a", 1), thing("b", 8))),
        HELD,
    ]
    async with rig.running():
        await rig.until(lambda: len(server.requests) == 4)
        assert rig.reflector.synced
    assert rig.told == [("a", "1"), ("b", "2"), ("c", "3"), ("c", None), ("b", "8")]
    assert versions(server) == ["list:500", "5", "list:500", "9"]
    assert rig.waits == [0.8]


@pytest.mark.parametrize(
    "trouble",
    [
        refuses(403, "Forbidden"),
        refuses(500, "InternalError"),
        answers(b"<html>", status=502),
        answers(b'{"metadata": {"resour'),
        answers(b"{}"),
        answers(listing(1, {"metadata": {}})),
        answers(b'{"metadata":{"resourceVersion":"1"},"items":{"a":1}}'),
        answers(b'{"metadata":{"resourceVersion":"1"},"items":[1]}'),
        streams(b"{", then=cut),
    ],
    ids=["403", "500", "html", "truncated", "empty", "nameless", "no list", "no objects", "cut"],
)
async def test_trouble_with_the_list_is_backed_off_and_survived(server: Server, rig: Rig, trouble: Handler) -> None:
    server.script = [*[trouble] * 8, EMPTY, HELD]
    async with rig.running():
        assert await rig.reflector.wait_synced(5)
        assert rig.reflector.last_error is None
    assert None not in rig.errors[:8]
    assert rig.waits[:8] == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


async def test_retry_after_of_a_server_is_obeyed(server: Server, rig: Rig) -> None:
    server.script = [answers(b"{}", status=429, Retry_After="17"), EMPTY, HELD]
    async with rig.running():
        await rig.reflector.wait_synced(5)
    assert rig.waits == [17.0]


async def test_a_watch_that_ends_at_once_is_backed_off(server: Server, rig: Rig) -> None:
    bookmark = streams(event("BOOKMARK", thing("", 2)))
    server.script = [EMPTY, *[bookmark] * 6, streams(then=rig.lasting(10)), streams(), HELD]
    async with rig.running():
        await rig.until(lambda: len(server.requests) == 10)
    # The watch that lasted resets the back-off; the short one after it waits the first step again.
    assert rig.waits == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 0.8]
    assert versions(server) == ["list:500", "1", *["2"] * 8]


async def test_a_watch_cut_within_an_event_goes_on_after_the_last_whole_one(server: Server, rig: Rig) -> None:
    whole, half = event("ADDED", thing("a", 2)), event("ADDED", thing("b", 3))
    here = answers(listing(2, thing("a", 2)))
    cuts = [streams(whole + half[:30], then=cut), here, streams(whole[:9]), here]
    server.script = [EMPTY, *cuts, streams(half, then=forever)]
    async with rig.running():
        await rig.until(lambda: len(rig.told) == 2)
    assert versions(server) == ["list:500", "1", "list:1", "2", "list:1", "2"]
    assert rig.told == [("a", "2"), ("b", "3")]


@pytest.mark.parametrize("trouble", [streams(then=cut), refuses(503, "ServiceUnavailable")], ids=["cut", "503"])
async def test_a_server_that_was_set_back_to_a_backup_is_listed_again(
    server: Server, rig: Rig, trouble: Handler
) -> None:
    before = answers(listing(900, thing("a", 880), thing("b", 890), thing("gone", 895)))
    after = answers(listing(891, thing("a", 880), thing("b", 890, content="written since"), thing("new", 891)))
    server.script = [before, trouble, after, after, HELD]
    async with rig.running():
        await rig.until(lambda: len(server.requests) == 5)
    assert versions(server) == ["list:500", "900", "list:1", "list:500", "891"]
    assert rig.reflector.get("gone") is None
    # The version 890 was given twice, to two contents of one object: what was known of versions says nothing now.
    assert text(rig.reflector.get("b") or {}, "content") == "written since"
    assert {("gone", None), ("b", "890"), ("new", "891")} <= set(rig.told[3:])


@pytest.mark.parametrize("version", ["900", "901", "opaque", "9" * 30, "\u0661"])
async def test_a_server_that_is_not_behind_is_followed_from_where_we_are(
    server: Server, rig: Rig, version: str
) -> None:
    page = listing(1)
    page["metadata"] = {"resourceVersion": version}
    server.script = [answers(listing(900)), streams(then=cut), answers(page), HELD]
    async with rig.running():
        await rig.until(lambda: len(server.requests) == 4)
    assert versions(server) == ["list:500", "900", "list:1", "900"]


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_a_server_that_is_away_is_asked_again_where_it_is(server: Server, rig: Rig, status: int) -> None:
    back = answers(listing(7))
    server.script = [answers(listing(900)), streams(then=cut), refuses(status, "Away"), back, back, HELD]
    async with rig.running():
        await rig.until(lambda: len(server.requests) == 6)
    assert versions(server) == ["list:500", "900", "list:1", "list:1", "list:500", "7"]


@pytest.mark.parametrize(
    "line",
    [
        b"<html>\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"SURPRISE","object":{}}\n',
        b'{"type":"ADDED","object":{"metadata":{}}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"x"}}}\n',
        b'{"type":"BOOKMARK","object":{}}\n',
        b"[]\n",
    ],
)
async def test_a_line_that_is_no_event_is_survived(server: Server, rig: Rig, line: bytes) -> None:
    server.script = [EMPTY, streams(line, then=forever), streams(event("ADDED", thing("a", 2)), then=forever)]
    async with rig.running():
        await rig.until(lambda: ("a", "2") in rig.told)
    assert rig.waits == [0.8]


FUTURE = refuses(504, "Timeout", "Too large resource version: 900, current: 7")


@pytest.mark.parametrize("refusal", [FUTURE, streams()], ids=["504", "200 without an event"])
async def test_a_version_that_the_server_keeps_refusing_is_given_up(server: Server, rig: Rig, refusal: Handler) -> None:
    server.script = [answers(listing(900)), *[refusal] * 5, answers(listing(7)), HELD]
    async with rig.running():
        await rig.until(lambda: len(server.requests) == 8)
    assert versions(server) == ["list:500", *["900"] * 5, "list:500", "7"]


async def test_a_server_cannot_fill_the_cache_without_end(server: Server, client: ApiClient) -> None:
    waited = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        waited.set()
        await asyncio.Event().wait()

    flood = [thing(f"x{number}", number + 1) for number in range(11)]
    for script in ([answers(listing(1, *flood))], [EMPTY, streams(*[event("ADDED", item) for item in flood])]):
        server.script = list(script)
        waited.clear()
        reflector = Reflector(client, "/x", on_change=lambda _key, _item: None, max_objects=9, sleep=sleep)
        running = asyncio.create_task(reflector.run())
        await asyncio.wait_for(waited.wait(), 60)
        assert isinstance(reflector.last_error, Malformed)
        assert len(list(reflector.values())) <= 10
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_quiet_watches_that_the_server_ends_after_their_time_are_no_trouble(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A server on which nothing happens sends no bookmarks (seen: one warning each 100 s for ever)."""
    async with ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        rig = Rig(client)
        quiet = streams(then=rig.lasting(60))
        server.script = [EMPTY, quiet, quiet, quiet, HELD]
        async with rig.running():
            await rig.until(lambda: len(server.requests) >= 5)
            assert rig.waits == []
            assert rig.reflector.last_error is None
            assert rig.reflector.last_contact >= 120
    assert not caplog.records


@pytest.mark.parametrize("kind", ["silent", "with bookmarks"])
async def test_a_watch_that_its_server_does_not_end_is_trouble_until_a_list_succeeded(
    server: Server, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Seen: watches that were granted and then told nothing counted as followed for ever."""
    async with hurried(server) as client:
        rig = Rig(client)
        hung = held(60, rig, bookmarks=kind == "with bookmarks")
        server.script = [EMPTY, hung, refuses(500, "InternalError"), answers(listing(3, thing("a", 2))), HELD]
        async with rig.running():
            await rig.until(lambda: len(server.requests) >= 5)
            assert rig.reflector.hung is rig.reflector.last_error is None
            assert rig.told == [("a", "2")]
    assert [type(error) for error in rig.errors] == [WatchHung, ApiError]
    assert ["watch" in request.query for request in server.requests] == [False, True, False, False, True]
    ours = [record.levelname for record in caplog.records if record.name.startswith("nodeattest")]
    assert ours == ["WARNING"]  # of the refused list


def hurried(server: Server) -> ApiClient:
    """A client whose first watch lasts two seconds, and whose others last minutes."""
    lasting = chain([0], repeat(300))
    config = parse_kubeconfig(server.kubeconfig())
    return ApiClient(config, watch_margin=2.0, randint=lambda _least, _most: next(lasting))


def held(seconds: float, rig: Rig, *, bookmarks: bool) -> Handler:
    """Grant a watch, let virtual time pass, and never end it."""

    async def hold(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        rig.now += seconds
        while True:
            await asyncio.sleep(0.01)
            if bookmarks:
                await response.write(event("BOOKMARK", thing("", 1)))

    return hold


async def test_an_index_follows_its_objects(server: Server, client: ApiClient) -> None:
    rig = Rig(client)
    rig.reflector.index("owner", lambda item: [text(item, "owner")] if "owner" in item else [])
    server.script = [
        answers(listing(5, thing("a", 1, owner="x"), thing("b", 2, owner="x"), thing("c", 3))),
        streams(event("MODIFIED", thing("a", 6, owner="y")), event("DELETED", thing("b", 7, owner="x")), then=forever),
    ]
    async with rig.running():
        await rig.until(lambda: len(rig.told) == 5)
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

    rig = Rig(client, transform=keep_little)
    server.script = [
        answers(listing(5, thing("a", 1))),
        streams(event("ADDED", thing("b", 6)), event("ERROR", status_object(410, "Gone"))),
        answers(listing(7, thing("a", 1), thing("b", 6))),
        HELD,
    ]
    async with rig.running():
        await rig.until(lambda: len(server.requests) == 4)
    assert seen == ["1", "6"]
    assert list(rig.reflector.values()) == [{"small": True}] * 2


async def test_a_large_burst_in_odd_chunks_arrives_whole_and_lets_others_run(server: Server, client: ApiClient) -> None:
    lines = b"".join(event("ADDED", thing(f"csr-{n}", n + 2, request="A" * 4500)) for n in range(3909))
    server.script = [EMPTY, streams(*_batched(lines, 2_500_001), then=forever)]
    async with Turns() as turns:
        handled_at: list[int] = []
        reflector = Reflector(client, "/x", on_change=lambda _key, _item: handled_at.append(turns.count))
        task = asyncio.create_task(reflector.run())
        await until(lambda: len(handled_at) == 3909)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert max(Counter(handled_at).values()) <= 100, "objects handled while no other task had a turn"


def _batched(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


# Objects that are too large, and trouble that is logged


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records if record.name == "nodeattest_kube.reflector"]


async def test_a_reflector_that_fails_says_so_once_a_minute_in_its_own_words(
    server: Server, client: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(client)
    where = f"cannot follow {server.url}/api/v1/things: "
    await rig.follow(server, refuses(403, "Forbidden", "secret words"), waits=6)
    assert rig.now < 60
    assert logged(caplog) == [where + "403 Forbidden"]
    await rig.follow(server, answers(b"<html>secret words"), waits=2)
    assert rig.now > 60
    assert len(logged(caplog)) == 2
    assert logged(caplog)[1].startswith(where + "200 MalformedAnswer: GET /api/v1/things: expected a JSON object")
    assert "secret" not in caplog.text


async def test_what_is_left_out_is_known_by_namespace_and_listed_again_in_a_while(
    server: Server, client: ApiClient
) -> None:
    blue, red = (thing("n", 2, namespace=name, fat="x" * 5000) for name in ("blue", "red"))
    rig = Rig(client, max_bytes=100_000)
    await rig.follow(server, answers(listing(1, blue)), streams(event("ADDED", red)), streams(), waits=2)
    assert rig.reflector.left_out == 2
    assert [rig.reflector.lacks_any_of(name) for name in ("blue", "red", "green")] == [True, True, False]
    assert ["watch" in request.query for request in server.requests] == [False, True, True]
    rig.now += 300
    await rig.follow(server, streams(), answers(listing(5, red)), streams(), waits=2)
    assert rig.reflector.left_out == 1
    assert not rig.reflector.lacks_any_of("blue")


async def test_a_list_that_fails_half_way_gives_back_its_memory_and_takes_none_of_what_is_kept(
    server: Server, client: ApiClient
) -> None:
    fat, pool = thing("a", 2, fat="x" * 5000), MemoryPool(1_000_000)
    rig = Rig(client, max_bytes=pool)
    await rig.follow(server, answers(listing(2, fat)), streams())
    kept = pool.used
    half = answers(listing(5, thing("a", 3), thing("b", 4, fat="x" * 5000), continues="next"))
    await rig.follow(server, refuses(410, "Expired"), half, refuses(500, "InternalError"), waits=2)
    assert pool.used == kept > 5000
    await rig.follow(server, answers(listing(9)), streams())
    assert pool.used == 0


async def test_what_is_left_out_stays_known_until_a_list_is_whole(server: Server, client: ApiClient) -> None:
    blue = thing("n", 2, namespace="blue", fat="x" * 5000)
    rig = Rig(client, max_bytes=100_000)
    await rig.follow(server, answers(listing(1, blue)), streams(), waits=1)
    rig.now += 300
    await rig.follow(server, streams(), refuses(500, "InternalError"), waits=2)
    assert rig.reflector.lacks_any_of("blue")
    await rig.follow(server, answers(listing(5)), streams(), waits=1)
    assert not rig.reflector.lacks_any_of("blue")


async def test_beyond_ten_thousand_namespaces_with_left_out_objects_each_may_lack_some(
    server: Server, client: ApiClient
) -> None:
    nameless = [thing("..", 2, namespace=f"n{number}") for number in range(10_000)]
    rig = Rig(client)
    await rig.follow(server, answers(listing(1, *nameless)), streams())
    assert rig.reflector.lacks_any_of("another")


async def test_after_an_event_that_was_too_large_the_collection_is_listed_again(
    server: Server, client: ApiClient
) -> None:
    large = event("MODIFIED", thing("a", 3, fat="x" * OBJECT.bytes))
    rig = Rig(client)
    script = (answers(listing(1, thing("a", 1))), streams(large + event("ADDED", thing("b", 4))))
    names = await rig.follow(server, *script, answers(listing(9, thing("b", 4))), streams(), waits=2)
    assert names == ["b"]
    assert rig.told == [("a", "1"), ("b", "4"), ("a", None)]
    assert rig.reflector.left_out == 0
    assert ["watch" in request.query for request in server.requests] == [False, True, False, True]


@pytest.mark.parametrize("name", ["a/b", "..", "../x", "n" * 1025])
async def test_an_object_that_no_path_can_name_is_passed_over(
    server: Server, client: ApiClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(client)
    objects = [thing(name, 2), thing("a", 3, namespace=name), thing("c\\d", 4)]
    changes = [event("ADDED", item) for item in objects] + [event("DELETED", objects[0])]
    assert await rig.follow(server, answers(listing(1, *objects)), streams(*changes)) == ["c\\d"]
    assert rig.told == [("c\\d", "4")]
    assert len(logged(caplog)[0]) < 300
