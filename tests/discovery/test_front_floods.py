"""What anonymous floods cost a front: connections, bytes and half-made handshakes are bounded, and keep nobody out."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from front_kit import LOOPBACK, Authority, KnownCluster, ask, get, listening, service
from jwt_kit import NOW, TOKEN

from nodeattest_discovery.front.service import FrontLimits, Metrics
from nodeattest_discovery.jwt import mint
from nodeattest_kube.rate_limiter import RateLimiter
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
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                assert b" 200 " not in await reader.read()
        writer.close()
        assert (await ask(listener.port, good(), authority)).status == 200


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
        async with asyncio.timeout(30):
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
