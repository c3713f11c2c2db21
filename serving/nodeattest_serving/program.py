"""What a program serves: replies to requests, health, metrics and tasks.

Liveness says only that the event loop runs: a program that waits for an API server must not be killed for it.
Source: kube-apiserver's ``staging/src/k8s.io/apiserver/pkg/server/healthz``; Prometheus' ``prometheus_build_info``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import cache
from http import HTTPStatus
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from nodeattest_kube.addresses import IPNetwork
from nodeattest_providers import __version__
from nodeattest_providers.version import COMMIT, of_checkout
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits, UnauthenticatedLimits, client_of
from nodeattest_serving.http_server import HttpLimits, HttpListener, Reply, ServerConnection, refusal

_PIECE: Final = 64 * 1024
_HEALTH_LIMITS: Final = ConnectionLimits(
    connections=64, connections_of_client=64, connection_seconds=3600.0, idle_seconds=15.0
)
"""Probes come every 10 s; probes and Prometheus have one or two connections."""
_TEXT: Final = "text/plain; charset=utf-8"
EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of Prometheus' text format."""
_ALIVE: Final = frozenset({"healthz", "livez"})

log = logging.getLogger(__name__)


Handler = Callable[[web.BaseRequest, str], Awaitable[Reply]]
"""Answers a request of a client (``client_of``)."""


class Listener(HttpListener):
    """A server for clients of whom only the address is known; forwarded addresses are ignored."""

    def __init__(
        self,
        handler: Handler,
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ConnectionLimits,
        *,
        unauthenticated: UnauthenticatedLimits | None = None,
        allowed: Collection[IPNetwork] = (),
    ) -> None:
        self._handler, self._limits = handler, limits
        idle = limits.connection_seconds if limits.idle_seconds is None else limits.idle_seconds
        http = HttpLimits(header_seconds=idle, idle_seconds=idle, unread_seconds=limits.connection_seconds)
        super().__init__(address, tls, limits, http, unauthenticated=unauthenticated, allowed=allowed)

    def lifetime(self, _connection: asyncio.Transport, /) -> float:
        return self._limits.connection_seconds + (self._limits.idle_seconds or 0.0)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; an exception is logged and answered with 500."""
        transport = request.transport
        client = client_of(None if transport is None else transport.get_extra_info("peername"))
        try:
            reply = await self._handler(request, client)
        except Exception:
            log.exception("answering a request failed")
            reply = refusal(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            return await _send(request, reply, last=self._is_last(request))
        finally:
            reply.written()

    def _is_last(self, request: web.BaseRequest) -> bool:
        connection, now = request.protocol, asyncio.get_running_loop().time()
        opened = connection.opened if isinstance(connection, ServerConnection) else now
        return self._limits.idle_seconds is None or now >= opened + self._limits.connection_seconds


async def _send(request: web.BaseRequest, reply: Reply, *, last: bool) -> web.StreamResponse:
    """Write a reply by pieces, because TLS buffers one of any size. ``last``: the connection ends after it."""
    answer = web.StreamResponse(status=reply.status, headers=reply.all_headers)
    answer.content_length = len(reply.body)
    if last:
        answer.force_close()
    await answer.prepare(request)
    if request.method != "HEAD":
        for start in range(0, len(reply.body), _PIECE):
            await answer.write(reply.body[start : start + _PIECE])
    await answer.write_eof()
    return answer


HealthCheck = Callable[[], str | None]
"""Returns None if all is well, else the reason that it is not."""


class ProgramMetrics:
    """Metrics of one program, in a registry of its own; no label's value comes from a request."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge = Gauge(
            "nodeattest_build_info",
            "Always 1; version and commit of this program.",
            ("version", "commit"),
            registry=self.registry,
        )
        gauge.labels(__version__, _commit()).set(1)

    def render(self) -> bytes:
        return generate_latest(self.registry)


@cache
def _commit() -> str:
    return COMMIT or of_checkout()


class HealthServer(Listener):
    """Serves /healthz, /livez and /readyz over plain HTTP, and /metrics, or one of both."""

    def __init__(
        self, address: BindAddress, checks: Mapping[str, HealthCheck] | None, metrics: ProgramMetrics | None = None
    ) -> None:
        """Take the ``checks`` of readiness by name; None: health is served elsewhere."""
        super().__init__(self._reply, address, None, _HEALTH_LIMITS)
        self._checks = None if checks is None else dict(checks)
        self._metrics = metrics

    async def _reply(self, request: web.BaseRequest, _client: str) -> Reply:
        if request.method not in {"GET", "HEAD"}:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered")
        if request.path == "/metrics" and self._metrics is not None:
            return Reply(status=HTTPStatus.OK, body=self._metrics.render(), headers={"Content-Type": EXPOSITION})
        name, _, only = request.path.removeprefix("/").partition("/")
        if self._checks is None or name not in {*_ALIVE, "readyz"}:
            return _text(HTTPStatus.NOT_FOUND, "not found")
        checks: dict[str, HealthCheck] = {"ping": lambda: None, **({} if name in _ALIVE else self._checks)}
        if only and only not in checks:
            return _text(HTTPStatus.NOT_FOUND, f"no such check: {', '.join(checks)}")
        results = {check: _run_check(checks[check]) for check in checks if only in {"", check}}
        return _report(name, results, verbose="verbose" in request.query)


def _report(name: str, results: Mapping[str, str | None], *, verbose: bool) -> Reply:
    passed = all(reason is None for reason in results.values())
    if passed and not verbose:
        return _text(HTTPStatus.OK, "ok")
    lines = [
        f"[+]{check} ok" if reason is None else f"[-]{check} failed: {reason}" for check, reason in results.items()
    ]
    lines.append(f"{name} check {'passed' if passed else 'failed'}")
    return _text(HTTPStatus.OK if passed else HTTPStatus.INTERNAL_SERVER_ERROR, "\n".join(lines) + "\n")


def _run_check(check: HealthCheck) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that raises has failed, and the probe must report it
        return f"the check itself failed with {type(error).__name__}"


def _text(status: HTTPStatus, text: str) -> Reply:
    return Reply(status=status, body=text.encode(), headers={"Content-Type": _TEXT})


async def run_server(
    server: HttpListener,
    tasks: Iterable[Callable[[], Coroutine[None, None, None]]],
    *,
    health: BindAddress | None,
    checks: Mapping[str, HealthCheck],
    metrics: ProgramMetrics,
) -> None:
    """Serve until canceled, and run tasks beside; raises ``SettingsError``. ``health``: None to serve no health."""
    probed = None if health is None else HealthServer(health, checks, metrics)
    async with AsyncExitStack() as stack:
        for each in (server, probed):
            if each is not None:
                stack.push_async_callback(each.stop)  # also what a start that fails has opened
                await each.start()
        log.info("serving on port %d, health on %s", server.port, "none" if probed is None else probed.port)
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(task())
            group.create_task(asyncio.Event().wait())
