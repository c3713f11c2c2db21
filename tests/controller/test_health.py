"""Health endpoints over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from fake_api import FakeApi

from nodeattest_controller.health import HealthPorts, serve_health
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.settings import Settings


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


async def test_metrics_stand_on_their_own_port(server: HealthPorts) -> None:
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.metrics}") as session,
        session.get("/metrics") as answer,
    ):
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "nodeattest_leader 0.0" in await answer.text()
        assert (await fetch(session, "/readyz"))[0] == 404
