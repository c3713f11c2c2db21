from __future__ import annotations

import asyncio
import base64
import gzip
import json
from pathlib import Path

import pytest
from aiohttp import web
from scripted import (
    Authority,
    Handler,
    Server,
    answers,
    event,
    kubeconfig,
    listing,
    refuses,
    sending,
    server_tls,
    serving,
    streams,
    thing,
)

from nodeattest_kube import errors
from nodeattest_kube.client import ApiClient
from nodeattest_kube.kubeconfig import parse_kubeconfig, read_kubeconfig
from nodeattest_parsing.values import JsonValue


async def hang(_request: web.Request) -> None:
    await asyncio.Event().wait()


async def test_no_cipher_is_offered_whose_group_a_server_may_choose_of_any_size(
    server: Server, client: ApiClient
) -> None:
    offered: list[str] = []

    async def note(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        offered.extend(name for name, *_ in request.transport.get_extra_info("ssl_object").shared_ciphers())
        return web.json_response(thing("a", 1))

    server.script = [note]
    await client.get("/api/v1/things/a")
    assert {name.partition("-")[0].partition("_")[0] for name in offered} == {"ECDHE", "TLS"}


async def test_verbs_send_what_the_api_expects(server: Server, client: ApiClient) -> None:
    server.script = [answers(thing("a", 1))]
    await client.get("/api/v1/things/a", {"fieldSelector": "spec.x=a b"})
    await client.create("/api/v1/things", {"a": 1})
    await client.replace("/api/v1/things/a", {"b": "ä"})
    await client.merge_patch("/api/v1/things/a", {"c": None})
    await client.delete("/api/v1/things/a", uid="u1", resource_version="7")
    await client.delete("/api/v1/things/a")
    sent = [(request.method, request.headers.get("Content-Type")) for request in server.requests]
    assert sent == [
        ("GET", None),
        ("POST", "application/json"),
        ("PUT", "application/json"),
        ("PATCH", "application/merge-patch+json"),
        ("DELETE", "application/json"),
        ("DELETE", "application/json"),
    ]
    assert server.requests[0].query == {"fieldSelector": "spec.x=a b"}
    assert [json.loads(body) for body in server.bodies[1:4]] == [
        {"a": 1},
        {"b": "ä"},
        {"c": None},
    ]
    assert json.loads(server.bodies[4])["preconditions"] == {"uid": "u1", "resourceVersion": "7"}
    assert "preconditions" not in json.loads(server.bodies[5])
    assert {request.headers["Authorization"] for request in server.requests} == {"Bearer t0ken"}
    assert client.requests == 6


TOO_MANY = errors.TooManyRequests


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
        (refuses(429, "TooManyRequests", retryAfterSeconds=4), TOO_MANY, 4.0),
        (answers(b"{}", status=429, Retry_After="3"), TOO_MANY, 3.0),
        (answers(b"{}", status=429, Retry_After="999999999999"), TOO_MANY, 300.0),
        (answers(b"{}", status=429, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), TOO_MANY, None),
        (answers(b"{}", status=429, Retry_After="-1"), TOO_MANY, None),
        (answers(b"{}", status=429), TOO_MANY, None),
    ],
)
async def test_a_refusal_has_its_own_type_and_tells_how_long_to_wait(
    server: Server, client: ApiClient, answer: Handler, kind: type[errors.ApiError], retry_after: float | None
) -> None:
    server.script = [answer]
    with pytest.raises(errors.ApiError) as caught:
        await client.get("/x")
    assert type(caught.value) is kind
    assert caught.value.retry_after == retry_after


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
    endpoint = parse_kubeconfig(server.kubeconfig())
    async with ApiClient(endpoint, clock=lambda: now) as client:
        assert client.server_time() is None
        await client.get("/x")
        now = 105.0
        found = client.server_time()
    assert (None if found is None else found.isoformat()) == told


@pytest.mark.parametrize(
    "body",
    [
        b"<html>login</html>",
        b'{"metadata": {"na',
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\uD800"}',
        b'{"a":' * 200_000,
        *(b'{"a": ' + number + b"}" for number in (b"9" * 5000, b"1e999", b"-1e999", b"-" + b"9" * 21)),
    ],
    ids=lambda body: repr(body[:12]),
)
async def test_a_granted_answer_that_is_no_object_is_malformed(server: Server, client: ApiClient, body: bytes) -> None:
    server.script = [answers(body), answers(body, status=502, Content_Type="text/html")]
    with pytest.raises(errors.Malformed) as caught:
        await client.get("/x")
    assert "GET /x" in caught.value.message
    with pytest.raises(errors.ApiError) as refused:
        await client.get("/x")
    assert refused.value.status == 502
    assert "login" not in str(refused.value)


async def test_a_compressed_answer_is_not_unpacked(server: Server, client: ApiClient) -> None:
    server.script = [answers(gzip.compress(b'{"a":"' + b"x" * (100 << 20) + b'"}', 1), Content_Encoding="gzip")]
    with pytest.raises(errors.Malformed):
        await client.get("/x")
    assert server.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 999999 What\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}{}{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"",
    ],
    ids=lambda raw: repr(raw[-12:]),
)
async def test_what_is_no_http_is_an_api_error(tmp_path: Path, raw: bytes) -> None:
    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    authority, context = server_tls(tmp_path, "127.0.0.1")
    async with (
        sending(send, context, authority) as server,
        ApiClient.from_kubeconfig(server.kubeconfig(), request_timeout=60.0) as client,
    ):
        with pytest.raises(errors.ApiError):
            await client.get("/x")


async def test_a_message_cannot_forge_or_flood_a_log(server: Server, client: ApiClient) -> None:
    server.script = [refuses(403, "Forbidden\nlevel=info", "a\r\nb\x1b[31m" + "x" * 100_000)]
    with pytest.raises(errors.Forbidden) as caught:
        await client.get("/x")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


async def test_a_redirect_is_not_followed(server: Server, client: ApiClient) -> None:
    server.script = [answers(b"", status=302, Location=server.url + "/elsewhere"), answers(thing("a", 1))]
    with pytest.raises(errors.ApiError) as caught:
        await client.get("/x")
    assert caught.value.status == 302
    assert len(server.requests) == 1


async def test_a_cookie_is_not_kept(tmp_path: Path) -> None:
    async with serving(tmp_path, "localhost") as server:  # A cookie jar would keep none of a bare address.
        server.url = server.url.replace("127.0.0.1", "localhost")
        server.script = [answers(thing("a", 1), Set_Cookie="session=1")]
        async with ApiClient.from_kubeconfig(server.kubeconfig()) as client:
            await client.get("/x")
            await client.get("/x")
    assert "Cookie" not in server.requests[1].headers


async def test_a_server_that_does_not_answer_is_unreachable_in_time(server: Server) -> None:
    server.script = [streams(then=hang)]
    async with ApiClient.from_kubeconfig(server.kubeconfig(), request_timeout=0.2) as client:
        with pytest.raises(errors.Unreachable, match="time limit"):
            await client.get("/x")


async def test_the_head_of_a_watch_must_come_within_the_time_limit_of_a_request(server: Server) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await hang(request)
        raise AssertionError

    server.script = [never]
    async with asyncio.timeout(60), ApiClient.from_kubeconfig(server.kubeconfig(), request_timeout=0.2) as client:
        reported: list[errors.ApiError | None] = []
        client.on_contact = reported.append
        with pytest.raises(errors.Unreachable, match="time limit") as raised:
            await anext(client.watch("/x", seconds=(600, 600)))
        assert reported == [raised.value]


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


async def test_a_server_of_another_ca_is_unreachable_and_sees_no_token(server: Server) -> None:
    endpoint = parse_kubeconfig(server.kubeconfig())
    stranger = kubeconfig(
        {"server": server.url, "certificate-authority-data": _base64(Authority().pem)}, {"token": "t"}
    )
    async with ApiClient.from_kubeconfig(stranger) as client:
        expected = "expected a certificate for .+ by the CAs of the kubeconfig; got another: .*CERTIFICATE_VERIFY"
        with pytest.raises(errors.Unreachable, match=expected):
            await client.get("/x")
    assert endpoint.ca_pem is not None
    assert server.requests == []


async def test_a_ca_that_another_ca_certifies_is_an_anchor(tmp_path: Path) -> None:
    intermediate = Authority("kubernetes", above=Authority("root"))
    async with serving(tmp_path, authority=intermediate) as server:
        server.script = [answers(thing("a", 1))]
        async with ApiClient.from_kubeconfig(server.kubeconfig()) as client:
            await client.get("/x")


async def test_the_servers_name_is_checked_and_tls_server_name_changes_it(tmp_path: Path) -> None:
    async with serving(tmp_path, "api.example.test") as server:
        server.script = [answers(thing("a", 1))]
        async with ApiClient.from_kubeconfig(server.kubeconfig()) as client:
            with pytest.raises(errors.Unreachable):
                await client.get("/x")
        async with ApiClient.from_kubeconfig(server.kubeconfig({"tls-server-name": "api.example.test"})) as client:
            await client.get("/x")


async def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    users = Authority("users")
    pair = users.issue("admin")
    user: dict[str, JsonValue] = {
        "client-certificate-data": _base64(pair.certificate),
        "client-key-data": _base64(pair.key),
    }
    async with serving(tmp_path, client_ca=users) as server:
        server.script = [answers(thing("a", 1))]
        async with ApiClient.from_kubeconfig(server.kubeconfig(user=user)) as client:
            await client.get("/x")
        assert "Authorization" not in server.requests[0].headers


async def test_pages_follow_the_continue_token(server: Server, client: ApiClient) -> None:
    server.script = [answers(listing(5, thing("a", 1), continues="t1")), answers(listing(5, thing("b", 2)))]
    pages = [page async for page in client.pages("/x", {"labelSelector": "l"}, limit=1)]
    assert [len(page["items"]) for page in pages if isinstance(page["items"], list)] == [1, 1]
    assert [dict(request.query) for request in server.requests] == [
        {"labelSelector": "l", "limit": "1"},
        {"labelSelector": "l", "limit": "1", "continue": "t1"},
    ]


async def test_a_list_that_continues_at_itself_ends(server: Server, client: ApiClient) -> None:
    server.script = [answers(listing(7, continues="next"))]
    pages = client.pages("/x")
    for _ in range(2):
        await anext(pages)
    with pytest.raises(errors.Malformed, match="continues at itself"):
        await anext(pages)


async def test_an_answer_larger_than_any_honest_one_is_not_held(server: Server, client: ApiClient) -> None:
    server.script = [streams(*[b" " * (1 << 20)] * 4, then=hang)]
    with pytest.raises(errors.TooLarge, match="larger"):
        await client.get("/x")


async def test_a_proxy_of_the_kubeconfig_is_used_with_its_password(server: Server) -> None:
    seen: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append(head)
        host, _, port = head.split()[1].decode().partition(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pump(reader, up_writer), _pump(up_reader, writer))

    proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    server.script = [answers(thing("a", 1))]
    async with (
        proxy,
        ApiClient.from_kubeconfig(server.kubeconfig({"proxy-url": f"http://me:p%40ss@127.0.0.1:{port}"})) as client,
    ):
        await client.get("/x")
        await client.get("/x")
    assert len(seen) == 1
    assert b"Proxy-Authorization: Basic " + _base64(b"me:p@ss").encode() in seen[0]
    assert b"t0ken" not in seen[0]


async def test_the_environments_proxy_counts_only_when_asked_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    server.script = [answers(thing("a", 1))]
    async with ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        await client.get("/x")
    named = kubeconfig({"server": "https://api.example.test"}, {})
    async with ApiClient.from_endpoint(parse_kubeconfig(named)) as client:
        with pytest.raises(errors.Unreachable, match=r"127\.0\.0\.1:1"):
            await client.get("/x")


async def test_a_rotated_token_is_read_again_after_a_minute_and_after_a_refusal(server: Server, tmp_path: Path) -> None:
    now = 0.0
    account = tmp_path / "token"
    account.write_text("one\n")
    file = tmp_path / "kubeconfig"
    file.write_bytes(server.kubeconfig(user={"tokenFile": "token"}))
    server.script = [answers(thing("a", 1))]
    endpoint = read_kubeconfig(file)
    async with ApiClient(endpoint, clock=lambda: now) as client:
        await client.get("/x")
        account.write_text("two")
        now = 30.0
        await client.get("/x")
        now = 61.0
        await client.get("/x")
        account.write_text("three")
        server.script = [refuses(401, "Unauthorized"), answers(thing("a", 1))]
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
    async with ApiClient.from_kubeconfig_file(file) as client:
        with pytest.raises(errors.Unauthorized, match="service account"):
            await client.get("/x")
    assert server.requests == []


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def test_a_client_that_may_not_act_sends_nothing(server: Server, client: ApiClient) -> None:
    server.script = [answers({"kind": "Thing"})]
    client.may_send = lambda: False
    with pytest.raises(errors.Unreachable, match="the time in which this process may ask is over"):
        await client.get("/api/v1/things/a")
    with pytest.raises(errors.Unreachable, match="the time in which this process may ask is over"):
        async for _ in client.watch("/api/v1/things", {"resourceVersion": "1"}):
            pass
    assert not server.requests
