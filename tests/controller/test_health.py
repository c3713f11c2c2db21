"""Health endpoints over real HTTP."""

from __future__ import annotations

import aiohttp
from fake_api import FakeApi

from nodeattest_controller.metrics import Metrics
from nodeattest_controller.metrics_server import serve_health
from nodeattest_controller.settings import Settings


def broken() -> str | None:
    raise LookupError("secret details")


async def test_readiness_names_each_failed_check_and_liveness_and_metrics_need_none() -> None:
    settings = Settings(identity="a", health_bind_address="127.0.0.1:0", metrics_bind_address="127.0.0.1:0")
    checks = {"caches": lambda: "waiting for machines", "bug": broken, "good": lambda: None}
    async with serve_health(settings, Metrics(), checks, FakeApi()) as ports, aiohttp.ClientSession() as web:

        async def fetch(path: str, port: int | None = ports.health) -> tuple[int, str]:
            async with web.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        failed = "[-]caches failed: waiting for machines\n[-]bug failed: the check itself failed with LookupError\n"
        assert await fetch("/readyz") == (500, f"[+]ping ok\n{failed}[+]good ok\nreadyz check failed\n")
        assert (await fetch("/readyz/caches"))[0] == 500
        assert await fetch("/readyz/good") == (200, "ok")
        assert (await fetch("/readyz/unknown"))[0] == 404
        assert await fetch("/livez") == await fetch("/healthz") == (200, "ok")
        status, text = await fetch("/metrics", ports.metrics)
        assert (status, "nodeattest_leader 0.0" in text) == (200, True)
        assert (await fetch("/readyz", ports.metrics))[0] == 404
