"""D10: what is sent to a proxy before an add-on, byte by byte over a socket; the add-on keeps every byte of its own."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from catalogue import Expected, Row, Verdict, attacks
from front_kit import Authority
from polling import until
from proxy_kit import LOOPBACK, Answer, Script, exchange, fixed, proxy, read_answer, request, silent, upstream

from nodeattest_identity.proxy.refusals import ProxyLimits
from nodeattest_serving.tls import ServingCertificate

MALLORY = "mallory"
SECRET = "c2VjcmV0LXRva2Vu"
KEY = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
WEBSOCKET = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")


def verdict(answer: Answer) -> Expected:
    """Tell what became of a request, by its answer."""
    if answer.status < 400:
        return Expected(Verdict.ACCEPT, "")
    return Expected(Verdict.DENY, str(json.loads(answer.body)["reason"]))


@dataclass(frozen=True)
class Sent:
    """Bytes to the proxy, and what it and the add-on are like."""

    data: bytes
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    addon: Script = field(default_factory=fixed)
    forwarded: int = 0
    """Requests of which the add-on hears, since they are refused for what comes later."""


def spoilt(*lines: str) -> Sent:
    return Sent(request("/", *lines))


def post(*lines: str, body: bytes = b"") -> Sent:
    return Sent(request("/", *lines, method="POST") + body)


REFUSED: Mapping[str, Sent] = {
    "D10-01": Sent(request("/pub/../admin")),
    "D10-02": Sent(request("/a%2f..%2fadmin")),
    "D10-03": Sent(request("/pub/%2e%2E/admin")),
    "D10-04": Sent(request("/pub%252f%252e%252e%252fadmin")),
    "D10-05": Sent(request("/pub/..\\admin")),
    "D10-06": Sent(request("/pub/..;a=b/admin")),
    "D10-07": Sent(request("/secret#/healthz")),
    "D10-08": Sent(request("http://addon.example/admin")),
    "D10-09": Sent(request("//evil.example/admin")),
    "D10-10": Sent(request("/admin%00.png")),
    "D10-11": Sent(request("/", host="addon.example/healthz?")),
    "D10-40": post("Content-Length: 4", "Transfer-Encoding: chunked", body=b"0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n"),
    "D10-41": post("Content-Length: 0", "Content-Length: 9", body=b"GET /x\r\n\r\n"),
    "D10-42": post("Content-Length: +1", body=b"x"),
    "D10-43": spoilt("X-A: 1", " X-Authenticated-User: mallory"),
    "D10-44": Sent(b"GET / HTTP/1.1\nHost: addon.example\nX-Authenticated-User: mallory\n\n"),
    "D10-45": spoilt("Host: evil.example"),
    "D10-46": spoilt("X-Authenticated-User : mallory"),
    "D10-47": post("Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "D10-48": spoilt("X-Large: " + "a" * 200_000),
    "D10-49": spoilt(*(f"X-{number}: 1" for number in range(1000))),
    "D10-50": Sent(b"GET / HTTP/1.1\r\nHost: addon.exa", ProxyLimits(header_seconds=0.1)),
    "D10-60": spoilt("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
    "D10-61": spoilt("Connection: Upgrade", "Upgrade: SPDY/3.1"),
    "D10-62": Sent(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n"),
    "D10-63": Sent(request("/", method="TRACE")),
    "D10-64": spoilt(*WEBSOCKET, KEY, KEY),
    "D10-72": Sent(request("/"), ProxyLimits(answer_seconds=0.1), silent, 1),
    "D10-73": Sent(post("Content-Length: 4", body=b"x").data, ProxyLimits(body_idle_seconds=0.1), silent, 1),
}


@pytest.mark.parametrize(("row", "sent"), attacks(REFUSED))
async def test_it_is_refused_in_one_word_and_the_add_on_hears_nothing_that_was_not_meant(row: Row, sent: Sent) -> None:
    async with upstream(sent.addon) as seen, proxy(seen, sent.limits) as port:
        answer = await exchange(port, sent.data)
        assert verdict(answer) == row.expected
        assert seen.requests == sent.forwarded
    assert MALLORY.encode() not in answer.body
    assert b"admin" not in answer.body


@pytest.mark.parametrize(("row", "wanted"), attacks({"D10-66": "HTTP/1.1 101 Switching Protocols"}))
async def test_a_switch_of_protocols_that_nobody_agreed_on_is_none(row: Row, wanted: str) -> None:
    lines = (wanted, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Accept: AAAA", "", "")
    async with upstream(fixed("\r\n".join(lines).encode())) as seen, proxy(seen) as port:
        assert verdict(await exchange(port, request("/", *WEBSOCKET, KEY))) == row.expected


# What the add-on gets

HARMLESS: Mapping[str, tuple[str, ...]] = {
    "D10-20": ("X_Authenticated_User: mallory", "X-Authenticated_User: mallory"),
    "D10-21": ("X.Authenticated.User: mallory", "X-Authenticated.User: mallory"),
    "D10-22": ("x-authenticated-user: mallory", "X-AUTHENTICATED-USER: mallory"),
    "D10-23": ("Connection: X-Authenticated-User, keep-alive", "Connection: x_authenticated_user"),
    "D10-24": (
        "X-Authorized-User: mallory", "X-Forwarded-User: mallory", "X-Remote-User: mallory", "Remote-User: mallory",
        "X-Auth-Request-User: mallory", "X_Remote_Groups: mallory", "X-Forwarded-Email: mallory",
    ),
    "D10-25": ("Impersonate-User: mallory", "Impersonate_Group: mallory", "Impersonate-Extra-x: mallory"),
    "D10-26": ("X-Original-URL: /mallory", "X-Forwarded-Uri: /mallory", "X-Rewrite-URL: /mallory"),
    "D10-27": ("Proxy: http://mallory.example",),
    "D10-28": ("X-Forwarded-For: mallory", "X-Real-IP: mallory", "Forwarded: for=mallory", "True-Client-IP: mallory"),
    "D10-29": (
        f"Authorization: Bearer {SECRET}", f"Proxy-Authorization: Basic {SECRET}",
        f"X-Forwarded-Access-Token: {SECRET}",
        f"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{SECRET}, v4.channel.k8s.io",
    ),
    "D10-30": ("X--Authenticated-User: mallory", "X_-_Authenticated__User: mallory", "X-Authenticated-User-: mallory"),
    "D10-31": (
        "SM_USER: mallory", "iv-user: mallory", "kubeflow-userid: mallory", "X-Uid: mallory", "X-Login: mallory",
        "X-Groups: mallory", "AUTH_USER: mallory", "X-Caller-Identity: mallory", "Eppn: mallory",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("row", "lines"), attacks(HARMLESS))
async def test_it_passes_and_the_add_on_hears_of_one_caller_only(row: Row, lines: tuple[str, ...]) -> None:
    async with upstream() as seen, proxy(seen) as port:
        assert verdict(await exchange(port, request("/", *lines))) == row.expected
        assert seen.values("x-authenticated-user") == ["alice"]
        assert MALLORY.encode() not in seen.bytes
        assert SECRET.encode() not in seen.bytes
        assert seen.values("x-forwarded-for") == [LOOPBACK]


# Two requests where one was judged


async def hears(port: int, data: bytes) -> bytes:
    """Send bytes, and read all until the connection ends."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(data)
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


FOLLOWED: Mapping[str, tuple[bytes, int]] = {
    "D10-51": (post("Transfer-Encoding: chunked", body=b"3\r\nabcXX0\r\n\r\n").data + request("/admin"), 400),
    "D10-65": (request("/", *WEBSOCKET, KEY) + request("/admin", f"Authorization: Bearer {SECRET}"), 403),
    "D10-79": (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 44\r\n\r\n" + request("/admin"), 400),
}


@pytest.mark.parametrize(("row", "sent"), attacks(FOLLOWED))
async def test_what_follows_a_refusal_is_no_request(row: Row, sent: tuple[bytes, int]) -> None:
    data, status = sent
    no = fixed(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
    async with upstream(no) as seen, proxy(seen) as port:
        heard = await hears(port, data)
        assert heard.split(b" ")[1] == str(status).encode()
        assert heard.count(b"HTTP/1.") == 1
        if row.expected.verdict is Verdict.DENY:
            assert json.loads(heard.partition(b"\r\n\r\n")[2])["reason"] == row.expected.reason
        assert b"/admin" not in seen.bytes
        assert SECRET.encode() not in seen.bytes
        assert seen.requests <= 1


@pytest.mark.parametrize(("row", "count"), attacks({"D10-52": 10_000}))
async def test_a_body_of_many_pieces_passes_and_keeps_nobody_waiting(row: Row, count: int) -> None:
    async def patient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, end = await reader.readuntil(b"\r\n\r\n"), b""
        while head.startswith(b"POST") and not end.endswith(b"0\r\n\r\n"):
            end = end[-8:] + await reader.readexactly(1)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    data = post("Transfer-Encoding: chunked", body=b"1\r\nx\r\n" * count + b"0\r\n\r\n").data
    async with upstream(patient) as seen, proxy(seen) as port:
        both = await asyncio.gather(exchange(port, data), exchange(port, request("/other")))
        assert [verdict(answer) for answer in both] == [row.expected] * 2
        assert seen.bytes.partition(b"POST")[2].count(b"x") >= count


# Time

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
SWITCHED = (
    b"HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n"
)
LASTING = {"D10-70": (request("/"), STREAM), "D10-71": (request("/", *WEBSOCKET, KEY), SWITCHED)}


@pytest.mark.parametrize(("row", "both"), attacks(LASTING))
async def test_what_lasts_ends_and_is_never_taken_for_whole(row: Row, both: tuple[bytes, bytes]) -> None:
    async with upstream(fixed(both[1])) as seen, proxy(seen, ProxyLimits(request_seconds=3)) as port:
        heard = await hears(port, both[0])
        assert heard.startswith(both[1][:13]) == (row.expected.verdict is Verdict.ACCEPT)
        assert not heard.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(("row", "piece"), attacks({"D10-74": b"10000\r\n" + b"x" * 0x10000 + b"\r\n"}))
async def test_an_answer_that_nobody_reads_ends_at_both_sides(row: Row, piece: bytes) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM)
        while True:
            writer.write(piece)
            await writer.drain()

    async with upstream(endless) as seen, proxy(seen, ProxyLimits(forwarded_unread_seconds=0.1)) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request("/"))
        heard = await reader.readuntil(b"\r\n\r\n")
        cast("asyncio.Transport", writer.transport).pause_reading()
        await until(lambda: seen.closed == 1)
        assert (b" 200 " in heard) == (row.expected.verdict is Verdict.ACCEPT)
        writer.transport.abort()


@pytest.mark.parametrize(("row", "size"), attacks({"D10-75": 40_000}))
async def test_a_body_reaches_the_add_on_once_and_its_answer_the_caller(row: Row, size: int) -> None:
    release = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(size)
        await release.wait()
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")

    async with upstream(late) as seen, proxy(seen, ProxyLimits(header_seconds=0.5)) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(post(f"Content-Length: {size}", body=b"x").data)
        await until(lambda: seen.requests == 1)
        writer.write(b"x" * (size - 1))
        await until(lambda: seen.bytes.endswith(b"x" * size))
        assert (await exchange(port, b"GET / HTTP/1.1\r\n")).status == 408  # a header's time is over
        release.set()
        async with asyncio.timeout(60):
            assert verdict(await read_answer(reader)) == row.expected
        assert seen.requests == 1
        writer.close()


@pytest.mark.parametrize(("row", "count"), attacks({"D10-76": 1_000}))
async def test_requests_at_once_keep_no_other_caller_waiting(row: Row, count: int) -> None:
    async with upstream() as seen, proxy(seen) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request("/pub/../admin") * count)
        async with asyncio.timeout(60):
            assert (await read_answer(reader)).status == 400
            assert verdict(await exchange(port, request("/"))) == row.expected
        assert seen.requests == 1
        writer.close()


@pytest.mark.parametrize(("row", "garbage"), attacks({"D10-77": bytes(range(256)) * 16}))
async def test_garbage_within_tls_is_refused_in_one_word(row: Row, garbage: bytes, tmp_path: Path) -> None:
    authority = Authority()
    tls = ServingCertificate(*authority.certify(tmp_path)).context
    client = ssl.create_default_context(cadata=authority.pem.decode())
    async with upstream() as seen, proxy(seen, tls=tls) as port:
        assert verdict(await exchange(port, garbage, client)) == row.expected
        assert verdict(await exchange(port, request("/"), client)) == Expected(Verdict.ACCEPT, "")
        assert seen.requests == 1


@pytest.mark.parametrize(("row", "stale"), attacks({"D10-78": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n/else"}))
async def test_an_answer_that_nobody_asked_for_is_taken_for_nobodys(row: Row, stale: bytes) -> None:
    kept: list[asyncio.StreamWriter] = []

    async def tells_path(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(writer)
        while True:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path))

    async with upstream(tells_path) as seen, proxy(seen) as port:
        assert (await exchange(port, request("/one"))).body == b"/one"
        kept[0].write(stale)
        for _ in range(20):  # until it is there
            await asyncio.sleep(0)
        for path in ("/two", "/three"):
            answer = await exchange(port, request(path))
            assert (verdict(answer), answer.body) == (row.expected, path.encode())
