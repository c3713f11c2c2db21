"""What is asked of an API server, and what every answer means; fat collections are read, nothing hostile is kept."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from aiohttp import web
from scripted import Handler, Server, answers, event, forever, hang, listing, refuses, streams, thing

from nodeattest_kube import errors
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.answers import OBJECT, PAGE, TENANT
from nodeattest_kube.client import ApiClient
from nodeattest_kube.input_scheduler import InputScheduler
from nodeattest_kube.kubeconfig import parse_kubeconfig, read_kubeconfig
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject, JsonValue

BOMB = b'{"a":[' + b"{}," * 900_000 + b"{}]}"
"""Less than 3 MiB, and 65 MB once parsed."""


async def test_verbs_send_what_the_api_expects(server: Server, client: ApiClient) -> None:
    server.script = [answers(thing("a", 1))]
    await client.get("/api/v1/things/a", {"fieldSelector": "spec.x=a b"})
    await client.create("/api/v1/things", {"a": 1})
    await client.replace("/api/v1/things/a", {"b": "ä"})
    await client.merge_patch("/api/v1/things/a", {"c": None})
    await client.delete("/api/v1/things/a", uid="u1", resource_version="7")
    await client.delete("/api/v1/things/a")
    sent = [(request.method, request.headers.get("Content-Type")) for request in server.requests]
    assert sent[:2] == [("GET", None), ("POST", "application/json")]
    assert sent[2:4] == [("PUT", "application/json"), ("PATCH", "application/merge-patch+json")]
    assert sent[4:] == [("DELETE", "application/json")] * 2
    assert server.requests[0].query == {"fieldSelector": "spec.x=a b"}
    *written, conditional, plain = [json.loads(body) for body in server.bodies[1:]]
    assert written == [{"a": 1}, {"b": "ä"}, {"c": None}]
    assert conditional["preconditions"] == {"uid": "u1", "resourceVersion": "7"}
    assert "preconditions" not in plain
    assert {request.headers["Authorization"] for request in server.requests} == {"Bearer t0ken"}
    assert client.requests == 6


BUSY = errors.TooManyRequests


@pytest.mark.parametrize(
    ("answer", "kind", "retry_after"),
    [
        (refuses(401, "Unauthorized"), errors.Unauthorized, None),
        (refuses(403, "Forbidden"), errors.Forbidden, None),
        (refuses(404, "NotFound"), errors.NotFound, None),
        (refuses(409, "Conflict"), errors.Conflict, None),
        (refuses(409, "AlreadyExists"), errors.AlreadyExists, None),
        (refuses(410, "Expired"), errors.Gone, None),
        (refuses(422, "Invalid"), errors.Invalid, None),
        (refuses(500, "InternalError"), errors.ApiError, None),
        (refuses(503, "ServiceUnavailable", retryAfterSeconds=2), errors.ApiError, 2.0),
        (refuses(429, "TooManyRequests", retryAfterSeconds=4), BUSY, 4.0),
        (answers(b"{}", status=429, Retry_After="3"), BUSY, 3.0),
        (answers(b"{}", status=429, Retry_After="999999999999"), BUSY, 300.0),
        (answers(b"{}", status=429, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), BUSY, None),
        (answers(b"{}", status=429, Retry_After="-1"), BUSY, None),
        (answers(b"{}", status=429), BUSY, None),
    ],
)
async def test_a_refusal_has_its_own_type_and_tells_how_long_to_wait(
    server: Server, client: ApiClient, answer: Handler, kind: type[errors.ApiError], retry_after: float | None
) -> None:
    server.script = [answer]
    with pytest.raises(errors.ApiError) as caught:
        await client.get("/x")
    assert (type(caught.value), caught.value.retry_after) == (kind, retry_after)


@pytest.mark.parametrize(
    ("date", "told"),
    [
        ("Wed, 21 Oct 2026 07:28:00 GMT", "2026-10-21T07:28:05+00:00"),
        ("Wed, 21 Oct 2026 07:28:00 -0000", "2026-10-21T07:28:05+00:00"),
        ("Wed, 21 Oct 2026 07:28:00 +0200", "2026-10-21T07:28:05+02:00"),
        ("Fri, 31 Dec 9999 23:59:59 GMT", None),
        ("Wed, 21 Oct 2026 07:28:00 +9959", None),
        ("Wed, 21 Oct 99999 07:28:00 GMT", None),
        ("yesterday", None),
        ("", None),
    ],
)
async def test_the_servers_clock_is_told_whatever_it_says(server: Server, date: str, told: str | None) -> None:
    now = 100.0
    server.script = [answers(thing("a", 1), Date=date)]
    async with ApiClient(parse_kubeconfig(server.kubeconfig()), clock=lambda: now) as client:
        assert client.server_time() is None
        await client.get("/x")
        now = 105.0
        found = client.server_time()
    assert (None if found is None else found.isoformat()) == told


@pytest.mark.parametrize(
    "body",
    [
        *(b"<html>login</html>", b'{"metadata": {"na', b"", b"[]", b"null", b"\xff\xfe", b'{"a": NaN}'),
        *(b'{"a": "\\ud800"}', b'{"a": "\\uD800"}', b'{"a":' * 200_000),
        *(b'{"a": ' + number + b"}" for number in (b"9" * 5000, b"1e999", b"-1e999", b"-" + b"9" * 21)),
    ],
    ids=lambda body: repr(body[:12]),
)
async def test_a_granted_answer_that_is_no_object_is_malformed(server: Server, client: ApiClient, body: bytes) -> None:
    server.script = [answers(body), answers(body, status=502, Content_Type="text/html")]
    with pytest.raises(errors.Malformed, match="GET /x"):
        await client.get("/x")
    with pytest.raises(errors.ApiError) as refused:
        await client.get("/x")
    assert refused.value.status == 502
    assert "login" not in str(refused.value)


async def test_a_compressed_answer_is_not_unpacked(server: Server, client: ApiClient) -> None:
    server.script = [answers(gzip.compress(b'{"a":"' + b"x" * (100 << 20) + b'"}', 1), Content_Encoding="gzip")]
    with pytest.raises(errors.Malformed):
        await client.get("/x")
    assert server.requests[0].headers["Accept-Encoding"] == "identity"


async def test_a_message_cannot_forge_or_flood_a_log(server: Server, client: ApiClient) -> None:
    server.script = [refuses(403, "Forbidden\nlevel=info", "a\r\nb\x1b[31m" + "x" * 100_000)]
    with pytest.raises(errors.Forbidden) as caught:
        await client.get("/x")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


async def test_a_redirect_is_not_followed_and_a_cookie_not_kept(server: Server) -> None:
    server.url = server.url.replace("127.0.0.1", "localhost")  # a cookie jar would keep none of a bare address
    moved = answers(b"", status=302, Location=server.url + "/elsewhere", Set_Cookie="session=1")
    server.script = [moved, answers(thing("a", 1))]
    async with ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        with pytest.raises(errors.ApiError) as caught:
            await client.get("/x")
        assert (caught.value.status, len(server.requests)) == (302, 1)
        await client.get("/x")
    assert "Cookie" not in server.requests[1].headers


async def test_a_client_that_may_not_act_sends_nothing(server: Server, client: ApiClient) -> None:
    client.may_send = lambda: False
    for ask in (client.get("/api/v1/things/a"), anext(client.watch("/api/v1/things"))):
        with pytest.raises(errors.Unreachable, match="the time in which this process may ask is over"):
            await ask
    assert not server.requests


@pytest.mark.parametrize(("ask", "script"), [("get", streams(then=forever)), ("watch", hang)])
async def test_a_server_that_does_not_answer_is_unreachable_in_the_time_of_a_request(
    server: Server, ask: str, script: Handler
) -> None:
    """The head of a watch must come in that time, too."""
    server.script = [script]
    reported: list[errors.ApiError | None] = []
    async with asyncio.timeout(60), ApiClient.from_kubeconfig(server.kubeconfig(), request_timeout=0.2) as client:
        client.on_contact = reported.append
        with pytest.raises(errors.Unreachable, match="time limit") as raised:
            await (client.get("/x") if ask == "get" else anext(client.watch("/x", seconds=(600, 600))))
    assert reported == ([None] if ask == "get" else [raised.value])


@pytest.mark.parametrize("kind", ["list", "watch"])
async def test_what_follows_the_head_of_a_list_or_watch_may_take_longer(server: Server, kind: str) -> None:
    go = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await go.wait()
        await response.write(json.dumps(listing(1)).encode() if kind == "list" else event("ADDED", thing("a", 1)))
        return response

    server.script = [slow]
    async with ApiClient.from_kubeconfig(server.kubeconfig(), request_timeout=0.5) as client:
        answer = asyncio.ensure_future(anext(client.pages("/x") if kind == "list" else client.watch("/x")))
        done, _ = await asyncio.wait({answer}, timeout=1.0)
        assert not done
        go.set()
        assert await answer


async def test_a_rotated_token_is_read_again_after_a_minute_and_after_a_refusal(server: Server, tmp_path: Path) -> None:
    now, account, file = 0.0, tmp_path / "token", tmp_path / "kubeconfig"
    account.write_text("one\n")
    file.write_bytes(server.kubeconfig(user={"tokenFile": "token"}))
    good = answers(thing("a", 1))
    server.script = [good]
    async with ApiClient(read_kubeconfig(file), clock=lambda: now) as client:
        await client.get("/x")
        account.write_text("two")
        for now in (30.0, 61.0):  # noqa: B007 - the clock reads it
            await client.get("/x")
        account.write_text("three")
        server.script = [refuses(401, "Unauthorized"), good]
        with pytest.raises(errors.Unauthorized):
            await client.get("/x")
        await client.get("/x")
        account.unlink()
        now = 200.0
        await client.get("/x")
    tokens = [request.headers["Authorization"].removeprefix("Bearer ") for request in server.requests]
    assert tokens == ["one", "one", "two", "two", "three", "three"]


@pytest.mark.parametrize("content", [None, b"", b"a b", b"a\r\nX-Remote-User: admin", b"\xff"])
async def test_a_token_file_without_a_token_is_unauthorized(
    server: Server, tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    file = tmp_path / "kubeconfig"
    file.write_bytes(server.kubeconfig(user={"tokenFile": "token"}))
    async with ApiClient(read_kubeconfig(file)) as client:
        with pytest.raises(errors.Unauthorized, match="service account"):
            await client.get("/x")
    assert server.requests == []


async def test_an_access_review_asks_all_that_identifies_a_user_and_takes_a_plain_yes_only(
    server: Server, client: ApiClient
) -> None:
    place = {"subresource": "s", "version": "v1", "namespace": "n", "name": "one"}
    asked = ResourceAttributes(verb="get", group="g", resource="r", **place)
    server.script = [answers({"status": {"allowed": True}})]
    user = ReviewedUser(name="u", groups=("a", "b"), uid="1", extra={"scopes": ("x",)})
    assert await is_access_allowed(client, asked, user)
    assert server.requests[-1].path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    attributes = {"verb": "get", "group": "g", "resource": "r", **place}
    asks = {"user": "u", "groups": ["a", "b"], "uid": "1", "extra": {"scopes": ["x"]}}
    assert json.loads(server.bodies[-1])["spec"] == {**asks, "resourceAttributes": attributes}
    both: JsonObject = {"allowed": True, "denied": True}
    no: tuple[JsonValue, ...] = ({}, {"allowed": False}, {"allowed": "true"}, {"allowed": 1}, None, both)
    for status in no:
        server.script = [answers({"status": status})]
        assert not await is_access_allowed(client, asked)


# Lists, and what is too large


class Collection:
    """A collection that is listed as a real API server lists it: chunked, and as tables."""

    def __init__(self, *items: JsonObject) -> None:
        self.items = [json.dumps(item) for item in items]
        self.names = [text(item, "metadata", "name") for item in items]
        self.limits: list[int] = []
        self.rows: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        limit, start = int(request.query["limit"]), int(request.query.get("continue", "0"))
        end = min(start + limit, len(self.items))
        head = {"resourceVersion": "9", "continue": str(end) if end < len(self.items) else ""}
        if "as=Table" in request.headers["Accept"]:
            assert request.query["includeObject"] == "None"
            self.rows += self.names[start:end]
            return web.json_response({"kind": "Table", "metadata": head, "rows": []})
        self.limits.append(limit)
        body = f'{{"metadata":{json.dumps(head)},"items":[{",".join(self.items[start:end])}]}}'
        return web.Response(text=body, content_type="application/json")


def things(first: int, end: int, size: int) -> list[JsonObject]:
    return [thing(f"t{number:03}", number + 1, fat="x" * size) for number in range(first, end)]


async def names_in(client: ApiClient, limit: int = 500, skipped: Callable[[], None] | None = None) -> list[str]:
    found: list[str] = []
    async for page in client.pages("/x", {"labelSelector": "l"}, limit=limit, skipped=skipped):
        items = page["items"]
        assert isinstance(items, list)
        found += [text(item, "metadata", "name") for item in items]
    return found


async def test_a_collection_larger_than_an_answer_may_be_is_listed_in_smaller_pages(
    server: Server, client: ApiClient
) -> None:
    collection = Collection(*things(0, 40, 500_000))
    server.script = [collection]
    assert await names_in(client) == collection.names
    assert (collection.limits, collection.rows) == ([500, 250, 125, 62, 31, 62], [])
    assert {request.query["labelSelector"] for request in server.requests} == {"l"}


@pytest.mark.parametrize("kind", ["bytes", "values"])
async def test_an_object_that_is_too_large_alone_is_passed_over(server: Server, client: ApiClient, kind: str) -> None:
    many: list[JsonValue] = [0] * PAGE.values
    fat: JsonValue = "x" * PAGE.bytes if kind == "bytes" else many
    collection = Collection(*things(0, 5, 10), thing("t005-bad", 6, fat=fat), *things(6, 11, 10))
    server.script = [collection]
    told: list[int] = []
    assert await names_in(client, 4, lambda: told.append(1)) == [name for name in collection.names if len(name) == 4]
    assert (told, collection.rows) == ([1], ["t005-bad"])
    with pytest.raises(errors.TooLarge):
        await names_in(client, 4)


async def test_a_list_that_continues_at_itself_ends(server: Server, client: ApiClient) -> None:
    server.script = [answers(listing(7, continues="next"))]
    with pytest.raises(errors.Malformed, match="continues at itself"):
        await names_in(client)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [(answers(BOMB), f"{OBJECT.values} values"), (streams(*[b" " * (1 << 20)] * 4, then=forever), "larger")],
    ids=["values", "bytes"],
)
async def test_an_answer_larger_than_any_honest_one_is_refused_before_it_is_parsed(
    server: Server, client: ApiClient, answer: Handler, why: str
) -> None:
    server.script = [answer]
    for ask in (client.get("/x"), client.create("/x", {})):
        with pytest.raises(errors.TooLarge, match=why):
            await ask


@pytest.mark.parametrize(
    "large",
    [event("ADDED", thing("b", 3, fat="x" * OBJECT.bytes)), b'{"type":"ADDED","object":' + BOMB + b"}\n"],
    ids=["bytes", "values"],
)
async def test_a_watch_event_that_is_too_large_is_passed_over(server: Server, client: ApiClient, large: bytes) -> None:
    server.script = [streams(event("ADDED", thing("a", 2)), large + event("ADDED", thing("c", 4)))]
    told: list[int] = []
    seen = [each.object async for each in client.watch("/x", skipped=lambda: told.append(1))]
    assert (seen, told) == ([thing("a", 2), thing("c", 4)], [1])
    with pytest.raises(errors.TooLarge):
        assert [each async for each in client.watch("/x")]


@pytest.mark.parametrize("code", [10**18, -1, 0, 200, True, "410", None])
async def test_an_error_event_with_a_strange_code_is_an_error_of_the_server(
    server: Server, client: ApiClient, code: JsonValue
) -> None:
    server.script = [streams(event("ERROR", {"kind": "Status", "code": code}))]
    with pytest.raises(errors.ApiError) as caught:
        await anext(client.watch("/x"))
    assert caught.value.status == 500


def page_of(values: int) -> bytes:
    """Return a page of one object of so many values."""
    head = b'{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"},"fat":['
    return head + b",".join([b'""'] * (values - 20)) + b"]}]}"


@pytest.mark.parametrize("values", [TENANT.page.values, TENANT.page.values + 100])
async def test_a_tenants_answer_is_parsed_in_pieces_of_bounded_size(
    server: Server, client: ApiClient, values: int
) -> None:
    client.schedule_input(InputScheduler().cluster("a", "a/c"))
    page = page_of(values)
    server.script = [answers(page), streams(event("ADDED", thing("a", 1)).replace(b"{", page[:-1] + b",", 1))]
    fits = values <= TENANT.page.values
    with nullcontext() if fits else pytest.raises(errors.TooLarge):
        assert [each async for each in client.pages("/x", limit=1)]
    with nullcontext() if fits else pytest.raises(errors.TooLarge):
        assert [each async for each in client.watch("/x", {"resourceVersion": "1"})]
