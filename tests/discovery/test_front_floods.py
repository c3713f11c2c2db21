"""What anonymous floods cost a front: connections, bytes and half-made handshakes are bounded, and keep nobody out."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import sys
from asyncio.sslproto import SSLProtocol
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest
from front_kit import LOOPBACK, Authority, KnownCluster, ask, get, listening, secret_object, service
from jwt_kit import NOW, TOKEN, jwt

from nodeattest_discovery.front.service import FrontLimits, Metrics, authenticate
from nodeattest_discovery.jwt import mint, parse
from nodeattest_kube.fair_queue import RateLimiter
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied
from nodeattest_serving.bounded_server import BindAddress
from nodeattest_serving.health import HealthServer
from nodeattest_serving.listener import Listener
from nodeattest_serving.tls import ServingCertificate

ELSEWHERE = "127.0.0.2"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def known(authority: Authority) -> KnownCluster:
    return KnownCluster.of(authority)


def good() -> bytes:
    return get(b"Bearer " + mint(TOKEN, NOW).encode())


def tls_protocols() -> int:
    return sum(isinstance(each, SSLProtocol) for each in gc.get_objects())


async def test_handshakes_that_fail_leave_no_buffers_for_the_collector(
    known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    """asyncio's TLS has a buffer of 256 KiB a connection: a thousand in cycles are all of a container's memory."""
    limits = FrontLimits(connections_of_client=1)
    async with listening(service(known).handle, tmp_path, authority, limits=limits) as listener:
        gc.collect()
        gc.disable()
        try:
            before = tls_protocols()
            for _ in range(20):
                reader, writer = await asyncio.open_connection(LOOPBACK, listener.port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                with suppress(ConnectionError):
                    await reader.read()
                writer.close()
                await asyncio.sleep(0)
            assert tls_protocols() - before <= 1
        finally:
            gc.enable()
    assert listener.turned_away == 0


async def test_clients_that_hold_all_connections_lose_their_oldest_to_a_newcomer(
    known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    limits = FrontLimits(connections=2, connections_of_client=2)
    async with listening(service(known).handle, tmp_path, authority, limits=limits) as listener:
        held = [
            await asyncio.open_connection(LOOPBACK, listener.port, local_addr=(ELSEWHERE, 0), ssl=trusting(authority))
            for _ in range(2)
        ]
        assert (await ask(listener.port, good(), authority)).status == 200
        assert await held[0][0].read() == b""
        assert listener.turned_away == 1
        held[1][1].write(get())
        assert (await held[1][0].read()).startswith(b"HTTP/1.1 401")
        for _, writer in held:
            writer.close()


async def test_a_client_far_over_its_rate_gets_no_handshake_and_others_do(
    known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    tls = ServingCertificate(*authority.certify(tmp_path))
    arrivals = RateLimiter(burst=2, per_second=1.0, clock=lambda: 0.0)
    listener = Listener(service(known).handle, BindAddress(LOOPBACK, 0), tls.context, FrontLimits(), arrivals=arrivals)
    await listener.start()
    try:
        for _ in range(2):
            _, writer = await asyncio.open_connection(LOOPBACK, listener.port, local_addr=(ELSEWHERE, 0))
            writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection(LOOPBACK, listener.port, local_addr=(ELSEWHERE, 0), ssl=trusting(authority))
        assert listener.turned_away == 1
        assert (await ask(listener.port, good(), authority)).status == 200
    finally:
        await listener.stop()


async def test_whoever_holds_most_gets_no_place_of_others(
    known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    limits = FrontLimits(connections=2, connections_of_client=2)
    async with listening(service(known).handle, tmp_path, authority, limits=limits) as listener:
        reader, writer = await asyncio.open_connection(LOOPBACK, listener.port, ssl=trusting(authority))
        other = await asyncio.open_connection(LOOPBACK, listener.port, local_addr=(ELSEWHERE, 0))
        with pytest.raises(OSError):
            await asyncio.open_connection(LOOPBACK, listener.port, local_addr=(ELSEWHERE, 0), ssl=trusting(authority))
        writer.write(good())
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        for each in (writer, other[1]):
            each.close()


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: %b\r\n" % (b"a" * 8000) * 5, id="headers"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 40_000, id="one header"),
        pytest.param(b"GET /" + b"a" * 40_000, id="a path"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n" + b"a" * 40_000, id="a body"),
        pytest.param(b"\0" * 40_000, id="no HTTP"),
    ],
)
async def test_a_connection_ends_when_more_comes_than_a_request_has(
    head: bytes, known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    limits = FrontLimits(connection_seconds=1000)
    async with listening(service(known).handle, tmp_path, authority, limits=limits) as listener:
        reader, writer = await asyncio.open_connection(LOOPBACK, listener.port, ssl=trusting(authority))
        writer.write(head)
        async with asyncio.timeout(60):
            with suppress(ConnectionError):
                assert b" 200 " not in await reader.read()
        writer.close()
        assert (await ask(listener.port, good(), authority)).status == 200


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"\r\n\r\n", b"\0\r\n\r\n", id="a NUL"),
        pytest.param(b"Host", b"X", id="no host"),
        pytest.param(b"Host", b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\nHost", id="two lengths"),
        pytest.param(b"\r\n", b"\n", id="line feeds"),
        pytest.param(b"GET ", b"G@T ", id="no verb"),
        pytest.param(b"Authorization:", b"Authorization :", id="a blank before the colon"),
        pytest.param(b"Host", b"X: %b\r\nHost" % (b"a" * 9000), id="a long header"),
    ],
)
async def test_what_is_no_http_gets_the_one_refusal_and_none_of_it_back(
    old: bytes, new: bytes, known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    async with listening(service(known).handle, tmp_path, authority) as listener:
        refused = await ask(listener.port, good().replace(old, new), authority)
        usual = await ask(listener.port, get(b"Bearer a", b"Bearer b"), authority)
    assert (refused.status, refused.body) == (400, usual.body)
    assert {name for name, _ in refused.headers} | {"Connection"} == {name for name, _ in usual.headers}
    assert refused.all("Server") == ["nodeattest"]


async def test_a_client_whose_ca_was_replaced_resumes_no_session(
    known: KnownCluster, authority: Authority, tmp_path: Path
) -> None:
    old, new = Authority("old clients"), Authority("new clients")
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(old.pem)
    context = trusting(authority)
    context.load_cert_chain(*old.certify(tmp_path, "apiserver", client=True))
    async with listening(service(known).handle, tmp_path, authority, client_ca=trusted) as listener:
        answer, session = await asyncio.to_thread(spoken, listener.port, context, None)
        assert answer.startswith(b"HTTP/1.1 401")
        assert session is None or not session.has_ticket
    trusted.write_bytes(new.pem)
    async with listening(service(known).handle, tmp_path, authority, client_ca=trusted) as listener:
        with pytest.raises(OSError, match=r".*"):
            await asyncio.to_thread(spoken, listener.port, context, session)


def test_where_clients_show_certificates_tls_1_2_is_not_spoken(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.certify(tmp_path)
    (tmp_path / "clients.pem").write_bytes(authority.pem)
    tls = ServingCertificate(certificate, key, tmp_path / "clients.pem")
    assert (tls.context.minimum_version, tls.context.num_tickets) == (ssl.TLSVersion.TLSv1_3, 0)


def test_a_token_that_nobody_has_takes_the_very_steps_of_one_with_another_secret() -> None:
    forged = parse(jwt(secret="0123456789abcdee"))

    def steps(secret: JsonObject | None) -> Counter[str]:
        called: Counter[str] = Counter()

        def note(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call":
                called[frame.f_code.co_qualname] += 1

        def look_up(_token_id: str) -> JsonObject | None:
            return secret

        sys.setprofile(note)
        try:
            with suppress(Denied):
                authenticate(forged, look_up, now=NOW)
        finally:
            sys.setprofile(None)
        return called

    steps(None)
    assert steps(None) == steps(secret_object())
    assert steps(None)["parse_rfc3339"] == 2


async def test_silent_connections_keep_no_probe_out() -> None:
    health = HealthServer(BindAddress(LOOPBACK, 0), {}, Metrics())
    await health.start()
    held: list[socket.socket] = []
    try:
        for _ in range(150):
            held.append(socket.create_connection((LOOPBACK, health.port)))
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(LOOPBACK, health.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(60):
            assert (await reader.read()).endswith(b"ok")
        writer.close()
        ended = sum(_has_ended(each) for each in held)
        assert 150 - 64 <= ended < 150
    finally:
        for each in held:
            each.close()
        await health.stop()


def _has_ended(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


def spoken(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
    """Ask over a connection that resumes a session, if given."""
    with (
        socket.create_connection((LOOPBACK, port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=LOOPBACK, session=session) as peer,
    ):
        peer.sendall(get())
        answer = b""
        while part := peer.recv(4096):
            answer += part
        if not answer:
            raise ConnectionError("no answer")
        return answer, peer.session
