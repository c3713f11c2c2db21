"""/healthz, /livez, /readyz and /metrics over plain HTTP, for probes and Prometheus.

Promises: liveness says only that the event loop turns (a controller that waits for an API server must not be killed
for it); readiness lists every check by name, as kube-apiserver does; request bodies are refused, nothing is written.
Leaves what is ready to the checks, and who may connect to the bind address and network policy: nothing here is secret.
Source: kube-apiserver's ``staging/src/k8s.io/apiserver/pkg/server/healthz``.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final, Self

from aiohttp import web

from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import CONTENT_TYPE, Metrics
from nodeattest_controller.settings import Settings, SettingsError

__all__ = ["HealthServer"]

_KEEPALIVE: Final = 15.0
"""Seconds an idle connection is kept; probes come every 10."""
_SHUTDOWN: Final = 1.0
"""Seconds to let a request end."""
_BACKLOG: Final = 64
_MAX_BODY: Final = 1
"""Bytes; no request here has a body."""
_HEADERS: Final = {"Cache-Control": "no-cache, private", "X-Content-Type-Options": "nosniff"}

_log = logging.getLogger(__name__)

Check = Callable[[], str | None]
"""Returns None when all is well, else the reason that it is not."""


class HealthServer:
    """Serves a controller's health and, on an address of its own, its metrics."""

    def __init__(self, settings: Settings, metrics: Metrics, checks: Mapping[str, Check]) -> None:
        self._settings: Final = settings
        self._checks: Final = dict(checks)
        self._metrics: Final = metrics
        self._runners: Final[list[web.AppRunner]] = []
        self._health_port = 0
        self._metrics_port: int | None = None

    @property
    def health_port(self) -> int:
        """The port that serves health; the chosen one where 0 was asked for."""
        return self._health_port

    @property
    def metrics_port(self) -> int | None:
        """The port that serves metrics; None where they are not served."""
        return self._metrics_port

    async def start(self) -> None:
        """Listen; raises ``SettingsError`` when an address cannot be had."""
        try:
            self._health_port = await self._serve(
                "healthBindAddress", self._settings.health_address, self._health_routes()
            )
            if self._settings.metrics_address is not None:
                routes = [web.get("/metrics", self._show_metrics)]
                self._metrics_port = await self._serve("metricsBindAddress", self._settings.metrics_address, routes)
        except BaseException:  # cancelled or refused, no port may stay open
            await self.stop()
            raise
        ports = fields(health_port=self._health_port, metrics_port=self._metrics_port)
        _log.info("serving health and metrics", extra=ports)

    async def stop(self) -> None:
        """Stop listening and close every connection; does nothing the second time."""
        while self._runners:
            await self._runners.pop().cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, field: str, address: tuple[str, int], routes: list[web.RouteDef]) -> int:
        app = web.Application(client_max_size=_MAX_BODY)
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=_KEEPALIVE, shutdown_timeout=_SHUTDOWN)
        await runner.setup()
        self._runners.append(runner)
        host, port = address
        try:
            await web.TCPSite(runner, host or None, port, backlog=_BACKLOG).start()
        except OSError as error:
            reason = (
                "another process listens there" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
            )
            raise SettingsError(f"{field}: expected an address to listen on, got {host}:{port}: {reason}") from error
        return int(runner.addresses[0][1])

    def _health_routes(self) -> list[web.RouteDef]:
        routes: list[web.RouteDef] = []
        for path, checks in (("/healthz", {}), ("/livez", {}), ("/readyz", self._checks)):
            handler = _handler(path.strip("/"), {"ping": _ping, **checks})
            routes += [web.get(path, handler), web.get(path + "/{check}", handler)]
        return routes

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={**_HEADERS, "Content-Type": CONTENT_TYPE})


def _ping() -> str | None:
    return None


def _handler(name: str, checks: Mapping[str, Check]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        only = request.match_info.get("check")
        if only is not None and only not in checks:
            return _respond(HTTPStatus.NOT_FOUND, f"no such check: {', '.join(checks)}")
        results = {check: _run(checks[check]) for check in checks if only in {None, check}}
        passed = all(reason is None for reason in results.values())
        if passed and "verbose" not in request.query:
            return _respond(HTTPStatus.OK, "ok")
        lines = [_line(check, reason) for check, reason in results.items()]
        lines.append(f"{name} check {'passed' if passed else 'failed'}")
        return _respond(HTTPStatus.OK if passed else HTTPStatus.INTERNAL_SERVER_ERROR, "\n".join(lines) + "\n")

    return answer


def _run(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a broken check is a failed check, and the probe must hear of it
        return f"the check itself failed with {type(error).__name__}"


def _line(check: str, reason: str | None) -> str:
    return f"[+]{check} ok" if reason is None else f"[-]{check} failed: {reason}"


def _respond(status: HTTPStatus, text: str) -> web.Response:
    return web.Response(status=status, text=text, headers=_HEADERS)
