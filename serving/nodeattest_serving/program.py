"""Runs a program that serves: its listener, its health server and its tasks; and the registry of its metrics.

Whatever was started is stopped when ``run_server`` ends, however it ends. Signals are the caller's, who cancels.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Final, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from nodeattest_providers import __version__
from nodeattest_providers.build_commit import COMMIT, of_checkout
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits
from nodeattest_serving.http_server import HttpListener, Listener, Reply


class CounterFunc(Collector):
    """A counter without labels, which shows 0 until ``set_function`` was called."""

    def __init__(self, name: str, documentation: str, *, registry: CollectorRegistry) -> None:
        """``name`` is without ``_total``."""
        self._name = name
        self._documentation = documentation
        self._read: Callable[[], int] = int
        registry.register(self)

    def set_function(self, read: Callable[[], int]) -> None:
        """Read the value here from now on; it must never fall."""
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Make the family."""
        yield CounterMetricFamily(self._name, self._documentation, value=self._read())


def export_build_info(registry: CollectorRegistry) -> None:
    """Add the metric ``nodeattest_build_info`` to a registry."""
    gauge = Gauge(
        "nodeattest_build_info",
        "Always 1; version and commit of this program.",
        ("version", "commit"),
        registry=registry,
    )
    gauge.labels(__version__, _commit()).set(1)


@cache
def _commit() -> str:
    return COMMIT or of_checkout()


_LIMITS: Final = ConnectionLimits(
    connections=64, connections_of_client=64, replaces_oldest=True, connection_seconds=3600.0, idle_seconds=15.0
)
"""Probes come every 10 s; probes and Prometheus have one or two connections."""
_TEXT: Final = "text/plain; charset=utf-8"
EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of Prometheus' text format."""
_METHODS: Final = frozenset({"GET", "HEAD"})
_ALIVE: Final = frozenset({"healthz", "livez"})

HealthCheck = Callable[[], str | None]
"""Returns None if all is well, else the reason that it is not."""


class MetricsSource(Protocol):
    """What can be scraped."""

    def render(self) -> bytes:
        """Return the exposition in Prometheus' text format."""
        ...


class HealthServer(Listener):
    """Serves /healthz, /livez and /readyz over plain HTTP, and /metrics, or one of both."""

    def __init__(
        self, address: BindAddress, checks: Mapping[str, HealthCheck] | None, metrics: MetricsSource | None = None
    ) -> None:
        """Take the ``checks`` of readiness by name; None: health is served elsewhere."""
        super().__init__(self._reply, address, None, _LIMITS)
        self._checks = None if checks is None else dict(checks)
        self._metrics = metrics

    async def _reply(self, request: web.BaseRequest, _client: str) -> Reply:
        if request.method not in _METHODS:
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered")
        if request.path == "/metrics" and self._metrics is not None:
            return Reply(status=HTTPStatus.OK, body=self._metrics.render(), headers={"Content-Type": EXPOSITION})
        name, _, only = request.path.removeprefix("/").partition("/")
        if self._checks is None or name not in {*_ALIVE, "readyz"}:
            return _text(HTTPStatus.NOT_FOUND, "not found")
        checks: dict[str, HealthCheck] = {"ping": lambda: None, **({} if name in _ALIVE else self._checks)}
        if only and only not in checks:
            return _text(HTTPStatus.NOT_FOUND, f"no such check: {', '.join(checks)}")
        results = {check: _run(checks[check]) for check in checks if only in {"", check}}
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


def _run(check: HealthCheck) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that raises has failed, and the probe must report it
        return f"the check itself failed with {type(error).__name__}"


def _text(status: HTTPStatus, text: str) -> Reply:
    return Reply(status=status, body=text.encode(), headers={"Content-Type": _TEXT})


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports that a program listens on."""

    main: int
    health: int | None
    """None: not enabled."""


class ProgramMetrics:
    """Metrics of one program, in a registry of its own; no label's value comes from a request."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        export_build_info(self.registry)

    def render(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self.registry)


async def run_server(
    server: HttpListener,
    health: HealthServer | None,
    tasks: Iterable[Callable[[], Awaitable[None]]],
    started: Callable[[Ports], None],
) -> None:
    """Serve until cancelled; raises ``SettingsError``. ``started`` gets the ports as soon as all listen."""
    async with AsyncExitStack() as stack:
        for each in (server, health):
            if each is not None:
                await each.start()
                stack.push_async_callback(each.stop)
        ports = Ports(main=server.port, health=None if health is None else health.port)
        _log.info("serving on port %d, health on %s", ports.main, ports.health or "none")
        started(ports)
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(_run_task(task))
            group.create_task(asyncio.Event().wait())


async def _run_task(task: Callable[[], Awaitable[None]]) -> None:
    await task()
