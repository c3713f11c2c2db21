"""Strangers at a listener: whose handshake begins when, and who may connect."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from ipaddress import ip_network
from pathlib import Path

import pytest
from aiohttp import web
from front_kit import LOOPBACK, Authority, ask, get
from virtual import now, run_virtually

from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits
from nodeattest_serving.connection_slots import HandshakeBudget
from nodeattest_serving.listener import Listener
from nodeattest_serving.replies import Reply
from nodeattest_serving.tls import ServingCertificate


def test_strangers_handshakes_keep_the_rate_and_each_address_has_its_turn() -> None:
    served: list[tuple[str, float]] = []

    async def handshake(budget: HandshakeBudget, client: str) -> bool:
        if may_begin := await budget.wait(client):
            served.append((client, now()))
        return may_begin

    async def everybody() -> list[bool]:
        budget = HandshakeBudget(10.0)
        strangers = [f"10.0.0.{number % 100}" for number in range(1000)]
        return await asyncio.gather(*(handshake(budget, each) for each in (*strangers, "api-server")))

    *strangers, api_server = run_virtually(everybody())
    assert api_server
    assert strangers.count(True) == 256
    assert [client for client, _ in served].index("api-server") == 101
    assert served[-1][1] > (len(served) - 2) / 10.0


async def test_a_connection_from_outside_the_allowed_networks_is_closed_before_tls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def reply(_request: web.BaseRequest, _client: str) -> Reply:
        return Reply(status=HTTPStatus.OK, body=b"{}")

    authority = Authority()
    tls = ServingCertificate(*authority.certify(tmp_path)).context
    allowed = (ip_network("127.0.0.1"), ip_network("fd00::/64"))
    listener = Listener(reply, BindAddress(LOOPBACK, 0), tls, ConnectionLimits(), allowed=allowed)
    await listener.start()
    for _ in range(3):
        reader, writer = await asyncio.open_connection(LOOPBACK, listener.port, local_addr=("127.0.2.1", 0))
        assert await reader.read() == b""
        writer.transport.abort()
    assert (await ask(listener.port, get(), authority)).status == 200
    await listener.stop()
    assert caplog.messages == ["closed connections from outside the allowed networks, the last one from 127.0.2.1"]
