"""Strangers at a listener: whose handshake begins when, and who may connect."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_network
from pathlib import Path

import pytest
from aiohttp import web
from front_kit import Authority, ask, get
from polling import until
from proxy_kit import ANY_PORT, LOOPBACK, connected, running
from virtual import now, run_virtually

from nodeattest_serving.bounded_server import ConnectionLimits, UnauthenticatedLimits
from nodeattest_serving.connection_slots import ConnectionSlots
from nodeattest_serving.http_server import Reply
from nodeattest_serving.program import Listener
from nodeattest_serving.tls import ServingCertificate


async def reply(_request: web.BaseRequest, _client: str) -> Reply:
    return Reply(status=HTTPStatus.OK, body=b"{}")


def test_strangers_handshakes_keep_the_rate_and_each_address_has_its_turn() -> None:
    served: list[tuple[str, float]] = []
    few = UnauthenticatedLimits(is_unauthenticated=lambda _: True, connections=9, handshakes=100.0)
    listener = Listener(reply, ANY_PORT, None, ConnectionLimits(), unauthenticated=few)

    async def handshake(client: str) -> bool:
        if may_begin := await listener.await_turn(client):
            served.append((client, now()))
        return may_begin

    async def everybody() -> list[bool]:
        strangers = [f"10.0.0.{number % 100}" for number in range(1000)]
        return await asyncio.gather(*map(handshake, (*strangers, "api-server")))

    *strangers, api_server = run_virtually(everybody())
    assert api_server
    assert strangers.count(True) == 256, "one has its turn, and as many wait"
    assert [client for client, _ in served].index("api-server") == 101
    assert served[-1][1] > (len(served) - 2) / few.handshakes


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    return ServingCertificate(*authority.certify(tmp_path)).context


async def test_a_connection_from_outside_the_allowed_networks_is_closed_before_tls(
    authority: Authority, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = (ip_network("127.0.0.1"), ip_network("fd00::/64"))
    async with running(Listener(reply, ANY_PORT, tls, ConnectionLimits(), allowed=allowed)) as listener:
        for _ in range(3):
            reader, writer = await asyncio.open_connection(LOOPBACK, listener.port, local_addr=("127.0.2.1", 0))
            assert await reader.read() == b""
            writer.transport.abort()
        assert (await ask(listener.port, get(), authority)).status == 200
    assert caplog.messages == ["closed connections from outside the allowed networks, the last one from 127.0.2.1"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_clients_that_refuse_the_certificate_take_no_place_and_log_no_error(
    authority: Authority, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture, version: ssl.TLSVersion
) -> None:
    ignorant, answer = ssl.create_default_context(), None
    ignorant.maximum_version = version
    limits = ConnectionLimits(connections=2, connections_of_client=2)
    async with running(Listener(reply, ANY_PORT, tls, limits)) as listener, asyncio.timeout(60):
        for _ in range(5):
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection(LOOPBACK, listener.port, ssl=ignorant)
        while answer is None:  # a place is free when the server, too, has seen the end
            with suppress(ConnectionError):
                answer = await ask(listener.port, get(), authority)
    assert answer.body == b"{}"
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


class _Connection(asyncio.Transport):
    ended = False

    def abort(self) -> None:
        self.ended = True


def _kept(slots: ConnectionSlots, client: str, owner: str, *, busy: bool = False) -> _Connection:
    one = _Connection()
    assert slots.take(client, one)
    slots.keep(one, owner)
    if not busy:
        slots.request_ended(one, authenticated=True)
    return one


def test_the_client_with_the_most_replaceable_connections_loses_one_and_busy_ones_stay() -> None:
    slots = ConnectionSlots(4, 4)
    busy = [_kept(slots, "a", owner, busy=True) for owner in "ijk"]
    other, last = _Connection(), _Connection()
    assert slots.take("b", other)
    assert slots.take("a", last), "b has one that is replaceable, and a has none"
    assert other.ended
    assert slots.take("c", _Connection())
    assert last.ended
    for _ in range(2):  # a lost connection is reported twice
        slots.leave(busy[0])
    assert slots.take("d", _Connection())
    assert not any(one.ended for one in busy)
    full = ConnectionSlots(2, 2)
    for owner in "ij":
        _kept(full, "a", owner, busy=True)
    assert not full.take("b", _Connection())


def test_idle_connections_of_one_owner_over_a_quarter_of_all_are_replaced_like_unauthenticated_ones() -> None:
    slots = ConnectionSlots(8, 8)
    first, *rest = [_kept(slots, "a", "alice") for _ in range(3)]
    others = [_kept(slots, "a", owner) for owner in ("bob", "carol") * 2 + ("dave",)]
    stranger = _Connection()
    assert slots.take("b", stranger)
    assert first.ended
    assert slots.take("b", _Connection())
    assert stranger.ended, "one unauthenticated connection replaces another, before any that is kept"
    assert not any(one.ended for one in (*rest, *others))


def test_a_connection_is_kept_no_longer_once_a_request_on_it_is_not_authenticated() -> None:
    slots = ConnectionSlots(2, 2)
    one, other = _kept(slots, "a", "alice"), _kept(slots, "a", "bob")
    slots.request_ended(other, authenticated=False)
    assert slots.take("b", _Connection())
    assert (one.ended, other.ended) == (False, True)


def test_a_client_has_so_many_connections_and_no_more() -> None:
    slots, other = ConnectionSlots(9, 2), _Connection()
    mine = [_Connection() for _ in range(3)]
    assert slots.take("b", other)
    assert [slots.take("a", one) for one in mine] == [True, True, True]
    assert [one.ended for one in (*mine, other)] == [True, False, False, False]


async def test_an_answer_is_written_when_its_client_has_read_it_or_is_gone(
    authority: Authority, tls: ssl.SSLContext
) -> None:
    """Who counts what answers cost (the webhook) counts those that nobody reads."""
    written, context = list[str](), ssl.create_default_context(cadata=authority.pem.decode())

    async def large(request: web.BaseRequest, _client: str) -> Reply:
        return Reply(status=HTTPStatus.OK, body=bytes(4 << 20), written=lambda: written.append(request.path))

    async with running(Listener(large, ANY_PORT, tls, ConnectionLimits())) as listener:
        for path in ("/read", "/aborted"):
            small = socket.socket()
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            small.settimeout(0)
            await asyncio.get_running_loop().sock_connect(small, (LOOPBACK, listener.port))
            reader, writer = await asyncio.open_connection(
                sock=small, ssl=context, server_hostname=LOOPBACK, limit=4096
            )
            writer.write(get(path=path))
            await reader.readline()
            assert (await ask(listener.port, get(path="/other"), authority)).status == 200  # meanwhile
            await until(lambda: "/other" in written)
            assert path not in written
            if path == "/read":
                assert len(await reader.read()) > 4 << 20
            writer.transport.abort()
            await until(lambda path=path: written.count(path) == 1)


GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.mark.parametrize(
    ("limits", "sent", "answers"),
    [
        pytest.param(ConnectionLimits(), GET + GET, 1, id="one answer is the last without an idle time"),
        pytest.param(ConnectionLimits(idle_seconds=0.1), b"", 0, id="nothing is said"),
        pytest.param(ConnectionLimits(idle_seconds=0.1), GET + GET, 2, id="nothing more is said"),
        pytest.param(ConnectionLimits(idle_seconds=0.1), GET + GET[:-2], 1, id="a header that does not end"),
        pytest.param(ConnectionLimits(idle_seconds=60, connection_seconds=0), GET + GET, 1, id="its time is over"),
        pytest.param(
            ConnectionLimits(idle_seconds=60),
            GET[:-2] + (b"X-Pad: " + b"a" * 4000 + b"\r\n") * 9,
            0,
            id="more than any request has",
        ),
    ],
)
async def test_a_connection_ends_by_itself(limits: ConnectionLimits, sent: bytes, answers: int) -> None:
    received = b""
    async with (
        running(Listener(reply, ANY_PORT, None, limits)) as listener,
        connected(listener.port, sent) as (reader, _),
    ):
        with suppress(ConnectionError):
            while more := await reader.read(65536):
                received += more
    assert received.count(b"HTTP/1.1 200") == answers
