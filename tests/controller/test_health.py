"""Health endpoints over real HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import pytest
from fake_api import FakeApi

from nodeattest_controller.health import HealthPorts, serve_health
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.settings import Settings
from nodeattest_serving.settings import SettingsError


class Doctor:
    """Checks whose answers a test decides."""

    def __init__(self) -> None:
        self.caches: str | None = None
        self.broken = False

    def check_caches(self) -> str | None:
        return self.caches

    def check_bug(self) -> str | None:
        if self.broken:
            raise LookupError("secret details")
        return None


def settings(**change: str) -> Settings:
    addresses = {"health_bind_address": "127.0.0.1:0", "metrics_bind_address": "127.0.0.1:0"} | change
    return Settings(
        identity="replica-a",
        health_bind_address=addresses["health_bind_address"],
        metrics_bind_address=addresses["metrics_bind_address"],
    )


@pytest.fixture
def doctor() -> Doctor:
    return Doctor()


@pytest.fixture
async def server(doctor: Doctor) -> AsyncIterator[HealthPorts]:
    checks = {"caches": doctor.check_caches, "bug": doctor.check_bug}
    async with serve_health(settings(), Metrics(), checks, FakeApi()) as running:
        yield running


@pytest.fixture
async def web(server: HealthPorts) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.health}") as session:
        yield session


async def fetch(web: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with web.get(path) as answer:
        return answer.status, await answer.text()


async def test_verbose_lists_every_check_as_kube_apiserver_does(web: aiohttp.ClientSession) -> None:
    listed = "[+]ping ok\n[+]caches ok\n[+]bug ok\nreadyz check passed\n"
    assert await fetch(web, "/readyz?verbose") == (200, listed)


async def test_a_failed_check_is_named_with_its_reason(web: aiohttp.ClientSession, doctor: Doctor) -> None:
    doctor.caches = "waiting for machines"
    status, text = await fetch(web, "/readyz")
    assert status == 500
    assert text == "[+]ping ok\n[-]caches failed: waiting for machines\n[+]bug ok\nreadyz check failed\n"
    assert (await fetch(web, "/readyz/caches"))[0] == 500
    assert await fetch(web, "/readyz/bug") == (200, "ok")
    assert (await fetch(web, "/readyz/unknown"))[0] == 404


async def test_a_controller_that_is_not_ready_is_still_alive(web: aiohttp.ClientSession, doctor: Doctor) -> None:
    doctor.caches = "waiting for machines"
    assert await fetch(web, "/livez") == (200, "ok")
    assert await fetch(web, "/healthz") == (200, "ok")


async def test_a_check_that_breaks_is_a_failed_check(web: aiohttp.ClientSession, doctor: Doctor) -> None:
    doctor.broken = True
    status, text = await fetch(web, "/readyz")
    assert status == 500
    assert "[-]bug failed: the check itself failed with LookupError" in text
    assert "secret details" not in text


async def test_metrics_stand_on_their_own_port(server: HealthPorts) -> None:
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.metrics}") as session,
        session.get("/metrics") as answer,
    ):
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "nodeattest_leader 0.0" in await answer.text()
        assert (await fetch(session, "/readyz"))[0] == 404


@pytest.mark.parametrize("field", ["health_bind_address", "metrics_bind_address"])
async def test_a_taken_port_is_a_clear_error_and_leaves_nothing_open(field: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        port, free = taken.getsockname()[1], other.getsockname()[1]
        other.close()
        chosen = settings(**{"health_bind_address": f"127.0.0.1:{free}", field: f"127.0.0.1:{port}"})
        with pytest.raises(SettingsError, match=f"BindAddress: .*127.0.0.1:{port}: another process listens there"):
            async with serve_health(chosen, Metrics(), {}, FakeApi()):
                pytest.fail("it must not start")
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", free)):
        pass


async def test_what_is_no_http_is_not_quoted_in_the_log(server: HealthPorts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for garbage in (b"\x16\x03\x01garbage\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.health)
        writer.write(garbage)
        assert b" 400 " in await reader.readline()
        writer.close()
    assert [record for record in caplog.records if record.name.startswith("aiohttp")] == []


@pytest.mark.parametrize("name", ["health", "metrics"])
async def test_idle_connections_are_limited_and_do_not_block_a_probe(server: HealthPorts, name: str) -> None:
    port: int = getattr(server, name)
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            assert (await fetch(session, "/healthz" if name == "health" else "/metrics"))[0] == 200
        async with asyncio.timeout(60):
            for reader, _writer in idle[: 100 - 64]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
        assert not any(reader.at_eof() for reader, _writer in idle[-32:])
    finally:
        for _reader, writer in idle:
            writer.close()
