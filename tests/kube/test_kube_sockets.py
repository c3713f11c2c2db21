"""Connections to API servers: who is trusted, what a peer may send before it answers, turns for the rest, proxies."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web
from polling import until
from scripted import Gate, Server, answers, b64, cut, kubeconfig, says, server_tls, serving, speaking, thing

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Unreachable
from nodeattest_kube.kubeconfig import parse_kubeconfig
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.pki import ClusterPki

READ: Final = 16_384
BEFORE_ANSWER: Final = 65_536
RECORDS: Final = 100_000
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
PHASES: Final = 4
"""Two attempts, each with a handshake or a proxy before its answer."""
ENDLESS: Final = 100 << 20
"""Bytes after which a test gives a client up that takes everything."""
ELSEWHERE: Final = "https://api.example.test"
GOOD: Final = answers(thing("a", 1))


async def rest() -> None:
    """Let everything that is ready happen."""
    for _ in range(20):
        await asyncio.sleep(0)


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


async def test_a_server_of_another_ca_is_unreachable_and_sees_no_token(server: Server, tmp_path: Path) -> None:
    stranger = ClusterPki.make(tmp_path, "another").ca_certificate
    config = server.kubeconfig({"certificate-authority-data": b64(stranger)})
    async with ApiClient.from_kubeconfig(config) as client:
        expected = "expected a certificate for .+ by the CAs of the kubeconfig; got another: .*CERTIFICATE_VERIFY"
        with pytest.raises(Unreachable, match=expected):
            await client.get("/x")
    assert server.requests == []


async def test_what_another_ca_has_certified_is_an_anchor(pki: ClusterPki) -> None:
    async with serving(pki) as server:
        server.script = [GOOD]
        own: JsonObject = {"certificate-authority-data": b64(pki.directory / "server.crt")}
        async with ApiClient.from_kubeconfig(server.kubeconfig(own)) as client:
            await client.get("/x")


async def test_the_servers_name_is_checked_and_tls_server_name_changes_it(pki: ClusterPki) -> None:
    async with serving(pki, server_tls(pki, "api.example.test")) as server:
        server.url, server.script = server.url.replace("127.0.0.1", "localhost"), [GOOD]
        async with ApiClient.from_kubeconfig(server.kubeconfig()) as client:
            with pytest.raises(Unreachable):
                await client.get("/x")
        async with ApiClient.from_kubeconfig(server.kubeconfig({"tls-server-name": "api.example.test"})) as client:
            await client.get("/x")


async def test_a_client_certificate_is_shown(pki: ClusterPki) -> None:
    certificate, key = pki.files("admin")
    tls = server_tls(pki)
    tls.load_verify_locations(pki.ca_certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    async with serving(pki, tls) as server:
        server.script = [GOOD]
        user: JsonObject = {"client-certificate-data": b64(certificate), "client-key-data": b64(key)}
        async with ApiClient.from_kubeconfig(server.kubeconfig(user=user)) as client:
            await client.get("/x")
        assert "Authorization" not in server.requests[0].headers


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
async def test_what_is_no_http_is_an_api_error(pki: ClusterPki, raw: bytes) -> None:
    async with (
        speaking(says(raw), pki, server_tls(pki)) as server,
        ApiClient.from_kubeconfig(server.kubeconfig(), request_timeout=60.0) as client,
    ):
        with pytest.raises(ApiError):
            await client.get("/x")


@pytest.mark.parametrize("path", ["/x y", "/x\r\nX: y", "/\u00e4", "x"])
async def test_a_path_that_would_be_another_request_is_not_sent(server: Server, client: ApiClient, path: str) -> None:
    for ask in (client.get(path), client.document("/x", accept="a\r\nX: y", limit=1)):
        with pytest.raises(Unreachable):
            await ask
    assert server.requests == []


@pytest.mark.parametrize("host", ["a" * 64 + ".test", "a..test", ".test", "999.999.999.999"])
async def test_a_host_name_that_cannot_be_looked_up_is_unreachable(host: str) -> None:
    async with ApiClient.from_kubeconfig(kubeconfig({"server": f"https://{host}"}, {}), request_timeout=60.0) as client:
        with pytest.raises(Unreachable):
            await client.get("/x")


async def test_a_connection_that_was_closed_while_it_was_kept_costs_a_read_nothing_and_a_write_is_not_repeated(
    server: Server, client: ApiClient
) -> None:
    async def cuts(request: web.Request) -> web.StreamResponse:
        await cut(request)
        return web.Response()

    async def refused(ask: Callable[[], Awaitable[object]]) -> bool:
        try:
            await ask()
        except Unreachable:
            return True
        return False

    for ask, script, seen, is_refused in (
        (lambda: client.get("/x"), [cuts, GOOD], 2, False),
        (lambda: client.replace("/x", {}), [cuts, GOOD], 2, False),
        (lambda: client.delete("/x"), [cuts, GOOD], 2, False),
        (lambda: client.create("/x", {}), [cuts, GOOD], 1, True),
        (lambda: client.merge_patch("/x", {}), [cuts, GOOD], 1, True),
        (lambda: client.get("/x"), [cuts], 2, True),  # once more, and no oftener
    ):
        server.script = [GOOD]
        await client.get("/kept")
        server.requests.clear()
        server.script = [*script]
        assert (await refused(ask), len(server.requests)) == (is_refused, seen)


async def test_an_answer_that_nobody_asked_for_is_taken_for_nobodys(pki: ClusterPki) -> None:
    kept: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(writer)
        while True:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
            body = b'{"path":"%s"}' % path
            writer.write(HEAD % len(body) + body)

    async with (
        speaking(echo, pki, server_tls(pki)) as server,
        ApiClient.from_kubeconfig(server.kubeconfig()) as client,
    ):
        assert await client.get("/one") == {"path": "/one"}
        kept[0].write(HEAD % 16 + b'{"path":"/else"}')
        await rest()
        for path in ("/two", "/three"):
            assert await client.get(path) == {"path": path}
    assert len(kept) == 2


# Input of a tenant


@pytest.mark.parametrize("closes", [False, True])
async def test_a_piece_of_an_answer_is_decrypted_in_each_turn_and_none_before(
    server: Server, client: ApiClient, *, closes: bool
) -> None:
    gate, big = Gate(), thing("a", 1, text="b" * (1 << 20))
    client.schedule_input(gate)
    server.script = [answers(big, Connection="close" if closes else "keep-alive")]
    getting, granted = asyncio.create_task(client.get("/x")), 0
    while not getting.done():
        await until(lambda: len(gate.turns) > granted or getting.done())
        await rest()
        assert len(gate.turns) <= granted + 1, "one at a time"
        for grant in gate.turns[granted:]:
            grant()
            granted += 1
    assert await getting == big
    assert granted >= (1 << 20) // (2 * READ) - 3, "its head comes with a piece, and the last turn parses"


@asynccontextmanager
async def one_byte_records(pki: ClusterPki, body: bytes) -> AsyncGenerator[Server]:
    """Run a server that answers in TLS records of one byte each, many in each packet."""
    context = server_tls(pki)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)

        async def step(call: Callable[[], object]) -> None:
            while True:
                try:
                    call()
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    if not (received := await reader.read(65_536)):
                        raise EOFError from None
                    incoming.write(received)
                else:
                    break

        await step(tls.do_handshake)
        await step(lambda: tls.read(65_536))
        tls.write(HEAD % len(body))
        for byte in body:
            tls.write(bytes([byte]))
        writer.write(outgoing.read())

    async with speaking(speak, pki) as server:
        yield server


async def test_records_of_one_byte_take_a_turn_for_each_32_kibibytes_of_them(pki: ClusterPki) -> None:
    gate = Gate(is_open=True)
    body = b'{"a":"%s"}' % (b"b" * RECORDS)
    async with one_byte_records(pki, body) as server, ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        client.schedule_input(gate)
        assert await client.get("/x") == {"a": "b" * RECORDS}
    smallest = 5 + 1 + 16
    """Bytes of a record of one byte: header, text, tag (RFC 8446 §5.2)."""
    assert len(gate.turns) >= smallest * RECORDS // (2 * READ)


@pytest.mark.parametrize("through", ["server", "proxy"])
@pytest.mark.parametrize(
    "piece",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 40,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        b"HTTP/1.1 200 " + b"K" * 100_000,
    ],
    ids=lambda piece: repr(piece[:40]),
)
async def test_what_never_becomes_an_answer_is_charged_and_ends(pki: ClusterPki, piece: bytes, through: str) -> None:
    gate = Gate()
    tls = server_tls(pki) if through == "server" else None
    async with speaking(says(*[piece] * (ENDLESS // len(piece))), pki, tls) as peer:
        proxy: JsonObject = {"server": ELSEWHERE, "proxy-url": peer.url.replace("https", "http")}
        async with ApiClient.from_kubeconfig(peer.kubeconfig({} if tls else proxy), request_timeout=60.0) as client:
            client.schedule_input(gate)
            getting = asyncio.create_task(client.get("/x"))
            await until(lambda: gate.turns or getting.done())
            await rest()
            assert not getting.done(), "nobody tries again before the turn"
            gate.turns[0]()
            with pytest.raises(Unreachable) as refused:
                await getting
    assert "time limit" not in str(refused.value)
    assert 0.001 < gate.charged <= 2 * PHASES * BEFORE_ANSWER * 0.25e-6


@pytest.mark.parametrize("scheduled", [True, False])
async def test_an_invalid_server_name_leaves_no_socket_open(pki: ClusterPki, scheduled: bool) -> None:
    def sockets() -> int:
        return len([one for one in Path("/proc/self/fd").iterdir() if one.is_socket()])

    async with one_byte_records(pki, b"{}") as server:
        name: JsonObject = {"tls-server-name": "a" * 64 + ".example"}
        async with ApiClient.from_kubeconfig(server.kubeconfig(name)) as client:
            if scheduled:
                client.schedule_input(Gate(is_open=True))
            before = sockets()
            for _ in range(10):
                with pytest.raises(Unreachable):
                    await client.get("/x")
            await until(lambda: sockets() <= before, "the end of the sockets")


# Proxies


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def test_a_proxy_of_the_kubeconfig_is_used_with_its_password(server: Server, pki: ClusterPki) -> None:
    seen: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        host, _, port = seen[-1].split()[1].decode().partition(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))

    server.script = [GOOD]
    async with speaking(relay, pki) as proxy:
        url = proxy.url.replace("https://", "http://me:p%40ss@")
        async with ApiClient.from_kubeconfig(server.kubeconfig({"proxy-url": url})) as client:
            await client.get("/x")
            await client.get("/x")
    [head] = seen
    assert b"Proxy-Authorization: Basic " + b64(b"me:p@ss").encode() in head
    assert b"t0ken" not in head


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "HTTP 407 Proxy Auth"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", ""),
        (b"nonsense\r\n\r\n", "no HTTP/1.1"),
        (b"", "ended before"),
    ],
)
async def test_a_proxy_that_does_not_connect_us_is_unreachable_in_its_own_words(
    pki: ClusterPki, answer: bytes, words: str
) -> None:
    async with speaking(says(answer), pki) as proxy:
        url = proxy.url.replace("https://", "http://me:hunter2@")
        async with ApiClient.from_kubeconfig(kubeconfig({"server": ELSEWHERE, "proxy-url": url}, {})) as client:
            with pytest.raises(Unreachable, match=rf"the proxy 127\.0\.0\.1:\d+: .*{words}") as caught:
                await client.get("/x")
    assert "hunter2" not in str(caught.value)


async def test_the_environments_proxy_counts_only_when_asked_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    server.script = [GOOD]
    async with ApiClient.from_kubeconfig(server.kubeconfig()) as client:
        await client.get("/x")
    async with ApiClient.from_endpoint(parse_kubeconfig(kubeconfig({"server": ELSEWHERE}, {}))) as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
            await client.get("/x")
