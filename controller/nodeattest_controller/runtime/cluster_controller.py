"""The controllers that run in every connected workload cluster: their interface, base class and supervision.

A ``ClusterController`` makes a ``ClusterRunner`` for each connection. A runner that a bug ends is made again after a
back-off, and no other runner with it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Final, Protocol

from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache, cluster_ref
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, Invalid
from nodeattest_kube.events import EventLimiter, EventRecorder, ObjectRef
from nodeattest_kube.periodic import BackoffPolicy, PeriodicReconciler, ResyncConfig, notify
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose


class ClusterRunner(Protocol):
    """One controller in one connected cluster."""

    @property
    def synced(self) -> bool:
        """Whether all that is watched has been read once."""
        ...

    @property
    def last_error(self) -> ApiError | None:
        """The error that keeps an informer from being up to date; None while there is none."""
        ...

    async def run(self) -> None:
        """Run until cancelled. An exception is a bug: this runner is made anew after a while, and no other."""
        ...

    def changed(self, keys: frozenset[str] | None, /) -> None:
        """Take in a change of the cluster's objects in the management cluster (``ClusterChanged``) without blocking."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterController:
    """One controller that works in every connected cluster."""

    name: str
    for_cluster: Callable[[ClusterKey, ApiClient], ClusterRunner]
    """Makes the runner of one connection, by the workload cluster's client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CSRIssued:
    """A certificate was published."""

    cluster: ClusterKey
    member: MachineView
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CSRDenied:
    """A request was denied for good."""

    cluster: ClusterKey
    provider_id: ProviderID
    """As the request claims it: proven by nothing."""
    node_name: NodeName
    """As the request claims it; proven where ``by_node``."""
    username: str
    by_node: bool
    """Whether the API server authenticated the requester as that very node (``system:node:<node_name>``)."""
    provider: ProviderName
    purpose: Purpose
    reason: Reason
    request_name: str
    message: str = field(repr=False)
    """Expected, got and remedy: for the management cluster only."""
    at: datetime
    evaluated: bool = True
    """Whether a check refused the request; False where its time ran out before it was evaluated."""


class CSRObserver(Protocol):
    """Observes outcomes; both methods return at once."""

    def granted(self, verdict: CSRIssued) -> None: ...

    def refused(self, verdict: CSRDenied) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerDeps:
    """What the controllers of all clusters are built with."""

    management: ManagementCache
    guard: ClusterGuard
    events: EventRecorder
    metrics: Metrics
    now: Callable[[], datetime]
    log: ClusterLog = field(default_factory=ClusterLog)
    """The limits of all clusters' lines."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""


PERIOD: Final = 600.0
"""Seconds between two reports of the same trouble."""


class ClusterEvents:
    """Log and Events of one controller about one cluster."""

    def __init__(self, deps: ReconcilerDeps, key: ClusterKey, log: logging.Logger) -> None:
        """``log`` is the controller's logger."""
        self.key, self._log = key, log
        self._management, self._events, self._lines = deps.management, deps.events, deps.log
        self._limiter = EventLimiter(deps.clock)

    def allow(self, about: Hashable, period: float = PERIOD) -> bool:
        """Return whether a report is due; if so, it is not again within ``period`` seconds."""
        return self._limiter.allow(about, period)

    def info(self, message: str, **more: object) -> None:
        self._write(logging.INFO, message, more)

    def debug(self, message: str, **more: object) -> None:
        """Log what is no trouble yet."""
        self._log.debug(message, extra=fields(cluster=self.key, **more))

    def warn(self, about: Hashable | None, message: str, period: float = PERIOD, /, **more: object) -> bool:
        """Log trouble once in a period, or with None each time; returns whether it was due."""
        due = about is None or self.allow(about, period)
        if due:
            self._write(logging.WARNING, message, more)
        return due

    def report(self, what: str, error: ApiError, *, reason: str, remedy: str, **more: object) -> None:
        is_refused = isinstance(error, Forbidden | Invalid)
        remedied = {"remedy": remedy} if is_refused else {}
        if self.warn((what, type(error)), what, error=str(error), **remedied, **more) and is_refused:
            self.event("Warning", reason, f"{what}: {error}; {remedy}")

    def _write(self, level: int, message: str, more: dict[str, object]) -> None:
        if self._lines.allows(message, self.key):
            self._log.log(level, message, extra=fields(cluster=self.key, **more))

    def event(self, kind: str, reason: str, message: str, *, on: ObjectRef | None = None) -> None:
        """Write an Event, on the Cluster unless another object is named."""
        if on is None:
            cluster = self._management.cluster(self.key)
            on = cluster_ref(cluster) if cluster is not None else None
        if on is not None:
            self._events.record(on, kind, reason, message)


class ClusterReconciler(PeriodicReconciler):
    """A controller in one connected cluster that runs periodically and after changes (``ClusterRunner``)."""

    resync: ClassVar = ResyncConfig()

    def __init__(
        self, deps: ReconcilerDeps, key: ClusterKey, client: ApiClient, resync: ResyncConfig | None = None
    ) -> None:
        super().__init__(resync or self.resync, clock=deps.clock)
        self._key, self._client = key, client
        self._management, self._guard, self._metrics = deps.management, deps.guard, deps.metrics
        self._now = deps.now
        log = logging.getLogger(type(self).__module__)
        self._events = ClusterEvents(deps, key, log)


_LOG: Final = logging.getLogger(__name__)
RESTART: Final = BackoffPolicy(initial=5.0, cap=300.0, jitter=0.25)
_HEALTHY: Final = 600.0
"""Seconds that a controller must run until its next bug counts as a first one."""


async def supervise(
    name: str,
    run: Callable[[], Awaitable[None]],
    *,
    cluster: ClusterKey | None = None,
    backoff: BackoffPolicy = RESTART,
) -> None:
    """Run until ``run`` returns or this is cancelled; start it again after a bug."""
    failures = 0
    while True:
        started = time.monotonic()
        error = await _end_of(run)
        if error is None:
            return
        failures = 1 if time.monotonic() - started > _HEALTHY else failures + 1
        delay = backoff.delay(failures, random.random, error)
        where = {"controller": name, "delay": round(delay, 1)} | ({"cluster": cluster} if cluster else {})
        _LOG.error("a bug ended a controller; it starts again: please report it", exc_info=error, extra=fields(**where))
        await asyncio.sleep(delay)


async def _end_of(run: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Run in a task of its own; returns the bug that ended it, and drops one that comes of being cancelled.

    Only a task of its own tells them apart: a TaskGroup in which a bug came up leaves its task looking as if somebody
    had cancelled it (``Task.cancelling``), up to Python 3.12.
    """
    running = asyncio.ensure_future(run())
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise
    return running.exception()


class SupervisedRunner:
    """One controller in one connected cluster; each start makes its runner anew."""

    def __init__(
        self, controller: ClusterController, key: ClusterKey, client: ApiClient, *, backoff: BackoffPolicy = RESTART
    ) -> None:
        self._controller = controller
        self._key = key
        self._client = client
        self._runner: ClusterRunner | None = None
        self._task = asyncio.create_task(supervise(controller.name, self._run, cluster=key, backoff=backoff))

    @property
    def is_healthy(self) -> bool:
        """Whether the controller runs, its informers are complete, and nothing keeps them from being up to date."""
        return self._runner is not None and self._runner.synced and self._runner.last_error is None

    def changed(self, keys: frozenset[str] | None) -> None:
        """Pass a change on; while the controller is down there is nobody to pass it to, and its start reads all."""
        if self._runner is not None:
            notify(self._runner.changed, keys)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        self._runner = self._controller.for_cluster(self._key, self._client)
        try:
            await self._runner.run()
        finally:
            self._runner = None
