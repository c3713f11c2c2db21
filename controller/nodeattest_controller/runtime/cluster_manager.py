"""Connects workload clusters, and runs every controller in each of them while this replica leads.

A cluster is connected if a policy selects it, its kubeconfig exists and this controller serves it. Each connection has
its own client and controllers. A refused kubeconfig is reported as a condition of the Cluster and as an Event.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.runtime import cluster_controller, conditions
from nodeattest_controller.runtime.guard import mark_of
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache, cluster_path, cluster_ref
from nodeattest_kube.addresses import Lookups
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, KubeconfigError, NotFound
from nodeattest_kube.events import EventLimiter
from nodeattest_kube.input_scheduler import InputScheduler
from nodeattest_kube.periodic import BackoffPolicy, call_every
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_parsing.objects import condition, items, key_of, mapping, text
from nodeattest_parsing.values import JsonObject

_LOG: Final = logging.getLogger(__name__)
LOG_PERIOD: Final = 60.0
"""Seconds between two reports of the log lines that were left out."""
METRICS_PERIOD: Final = 5.0
"""Seconds between two updates of metrics and refused addresses."""
ACCEPTED: Final = "KubeconfigAccepted"
REFUSED: Final = "KubeconfigRefused"
ANOTHER, TOO_MANY = "ServedByAnotherController", "TooManyClusters"
_GAP: Final = 60.0
"""Seconds between two writes of the same condition."""
_REFUSED_LINE: Final = "cannot use the cluster's kubeconfig"
WORKERS: Final = 4
"""Clusters that are connected or disconnected at the same time; half as many of one namespace."""


@dataclass(frozen=True, slots=True)
class _Connection:
    client: ApiClient
    fingerprint: str
    """SHA-256 of the kubeconfig."""
    runners: tuple[cluster_controller.SupervisedRunner, ...]


@dataclass(frozen=True, slots=True)
class _Refusal:
    fingerprint: str
    """SHA-256 of the kubeconfig."""
    expected: str
    why: str


class ClusterManager:
    """The connections to all opted-in clusters."""

    def __init__(
        self,
        deps: cluster_controller.ReconcilerDeps,
        controllers: Sequence[cluster_controller.ClusterController],
        *,
        connect: Callable[[bytes], ApiClient],
        restart: BackoffPolicy = cluster_controller.RESTART,
        metrics_period: float = METRICS_PERIOD,
        clusters_per_namespace: int,
    ) -> None:
        """``connect`` makes a client from a kubeconfig in a thread; it raises KubeconfigError."""
        self._management, self._guard, self._events = deps.management, deps.guard, deps.events
        self._metrics, self._now = deps.metrics, deps.now
        self._controllers, self._log = controllers, deps.log
        self._connect, self._restart, self._metrics_period = connect, restart, metrics_period
        self._connections: dict[ClusterKey, _Connection] = {}
        self._threads = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="kubeconfig")
        self._lookups = Lookups()
        self._input = InputScheduler()
        self._limit = clusters_per_namespace
        self._members: defaultdict[str, set[ClusterKey]] = defaultdict(set)
        """The clusters of a namespace that are connected, or about to be."""
        self._waiting: defaultdict[str, set[ClusterKey]] = defaultdict(set)
        """Those beyond the limit."""
        self._refused: dict[ClusterKey, _Refusal] = {}
        """Kubeconfigs that cannot be used, so that none is parsed twice."""
        self._reported: set[ClusterKey] = set()
        """Clusters with our condition that the kubeconfig is refused."""
        self._limiter = EventLimiter(deps.clock)
        most = WORKERS if deps.management.caches.namespace is not None else WORKERS // 2
        self._queue: WorkQueue[ClusterKey] = WorkQueue(
            groups=lambda key: (_namespace_of(key),), limits=(most,), metrics=deps.metrics.queues.named("clusters")
        )

    def changed(self, cluster: ClusterKey, keys: frozenset[str] | None) -> None:
        """Pass a change to the cluster's controllers; None: check the connection as well."""
        connection = self._connections.get(cluster)
        for runner in connection.runners if connection is not None else ():
            runner.changed(keys)
        if keys is None:
            self._queue.add(cluster)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._queue.run(self._reconcile, WORKERS))
                tasks.create_task(call_every(LOG_PERIOD, self._log.report))
                tasks.create_task(call_every(self._metrics_period, self._look))
        finally:
            self._queue.shut_down()
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._lookups.close()
            for key in list(self._connections):
                await self._disconnect(key)
            self._log.report()

    async def _reconcile(self, key: ClusterKey) -> None:
        """Connect, reconnect or disconnect one cluster, and report a refused kubeconfig."""
        cluster = self._management.cluster(key)
        if cluster is not None:
            self._report_conflict(cluster)
        else:
            self._waiting.get(_namespace_of(key), set()).discard(key)
        try:
            await self._reconcile_connection(key, cluster)
            await self._report_refusal(key)
        except Conflict as error:  # Cluster API writes a Cluster all the time
            self._queue.retry(key, error)
        except ApiError as error:
            if self._limiter.allow((key, ApiError), _GAP):
                _LOG.warning("cannot change the conditions of a cluster", extra=fields(cluster=key, error=str(error)))
            self._queue.retry(key, error)
        else:
            self._queue.forget(key)

    async def _reconcile_connection(self, key: ClusterKey, cluster: JsonObject | None) -> None:
        kubeconfig = self._wanted_kubeconfig(key, cluster)
        if cluster is not None and kubeconfig is not None:
            await self._claim(key, cluster)
        fingerprint = hashlib.sha256(kubeconfig).hexdigest() if kubeconfig else ""
        known = self._connections.get(key) or self._refused.get(key)
        if kubeconfig and known is not None and known.fingerprint == fingerprint:
            return
        await self._disconnect(key)
        if cluster is not None and kubeconfig is None:
            await self._guard.release(cluster)
        if kubeconfig is None or not self._guard.owns(key):
            self._leave(key)
            return
        try:
            # In a thread: a tenant's worst document takes long to parse, although its size is bounded.
            client = await asyncio.get_running_loop().run_in_executor(self._threads, self._connect, kubeconfig)
        except KubeconfigError as error:
            self._refused[key] = _Refusal(fingerprint, error.expected, str(error))
            if self._log.allows(_REFUSED_LINE, key):  # a tenant writes it
                _LOG.error(_REFUSED_LINE, extra=fields(cluster=key, error=str(error)))
            self._metrics.cluster(key, connected=False)
            return
        namespace = _namespace_of(key)
        client.use_resolver(self._lookups.of(namespace))
        client.schedule_input(self._input.cluster(namespace, key))
        client.may_send = partial(self._guard.owns, key)
        self._log.opened(key, client.server)
        client.on_contact = partial(self._log.answered, key)
        client.has_reported = partial(self._log.has_reported, key)
        client.log_name = f"cluster {key}: {client.server}"
        runners = tuple(
            cluster_controller.SupervisedRunner(controller, key, client, backoff=self._restart)
            for controller in self._controllers
        )
        self._connections[key] = _Connection(client, fingerprint, runners)

    async def _claim(self, key: ClusterKey, cluster: JsonObject) -> None:
        """Mark a Cluster; disconnect it if the mark cannot be written. Raises ApiError."""
        try:
            await self._guard.claim(key, cluster, self._now())
        except Conflict:  # the cache is late, and the Cluster's new state is about to arrive
            raise
        except ApiError:
            await self._disconnect(key)
            raise

    def _wanted_kubeconfig(self, key: ClusterKey, cluster: JsonObject | None) -> bytes | None:
        if cluster is None or not self._guard.owns(key) or "deletionTimestamp" in mapping(cluster, "metadata"):
            return None
        if not self._management.opts_in(cluster):
            return None
        kubeconfig = self._management.kubeconfig(key)
        return kubeconfig if kubeconfig is not None and self._has_room(key, cluster) else None

    def _has_room(self, key: ClusterKey, cluster: JsonObject) -> bool:
        """Return whether a cluster is within the limit of its namespace; others wait until one leaves."""
        namespace = _namespace_of(key)
        members = self._members[namespace]
        if key not in members and len(members) >= self._limit:
            self._waiting[namespace].add(key)
            message = (
                f"{self._guard.controller} serves {self._limit} Clusters of this namespace (clustersPerNamespace), and "
                "this is one more: raise the limit, or let another controller serve some (docs/scale.md)"
            )
            self._warn(cluster, TOO_MANY, message, "too many clusters in a namespace")
            return False
        members.add(key)
        return True

    def _leave(self, key: ClusterKey) -> None:
        """Give a cluster's place to those that wait for it."""
        namespace = _namespace_of(key)
        members = self._members[namespace]
        if key in members:
            members.remove(key)
            for waiting in self._waiting.pop(namespace, ()):
                self._queue.add(waiting)
        if not members:
            del self._members[namespace]

    async def _disconnect(self, key: ClusterKey) -> None:
        """Close the connection if there is one, and drop the cluster's metrics."""
        connection = self._connections.pop(key, None)
        if connection is not None:
            try:
                await asyncio.gather(*(runner.close() for runner in connection.runners))
            finally:  # also if this replica ends meanwhile
                await connection.client.close()
            self._log.closed(key)
        self._refused.pop(key, None)
        self._metrics.forget_cluster(key)

    def _report_conflict(self, cluster: JsonObject) -> None:
        mark, own = mark_of(cluster), self._guard.controller
        if self._guard.has_label(cluster) and mark not in {"", own}:
            message = f"{mark} serves this Cluster, so {own} does not; docs/scale.md says how to move it"
            self._warn(cluster, ANOTHER, message, "another controller serves this cluster", controller=mark)

    def _warn(self, cluster: JsonObject, reason: str, message: str, line: str, **more: object) -> None:
        if self._limiter.allow((text(cluster, "metadata", "uid"), reason, *more.values()), cluster_controller.PERIOD):
            _LOG.warning(line, extra=fields(cluster=key_of(cluster), **more))
            self._events.record(cluster_ref(cluster), "Warning", reason, message)

    async def _report_refusal(self, key: ClusterKey) -> None:
        """Write the condition that the kubeconfig is refused, or remove it; raises ApiError."""
        cluster, expected, why = self._guard.active_cluster(key), "", ""
        if cluster is None:
            self._reported.discard(key)
            return
        refusal, connection = self._refused.get(key), self._connections.get(key)
        if refusal is not None:
            expected, why = refusal.expected, refusal.why
        elif connection is not None:
            expected, why = "an address of a cluster", connection.client.refused_address
        client, path = self._management.client, cluster_path(cluster)
        try:
            if why and self._limiter.allow((key, expected), _GAP):
                refused = conditions.Condition(
                    ACCEPTED, conditions.ConditionStatus.FALSE, REFUSED, why, conditions.Severity.ERROR
                )
                await conditions.set_condition(client, path, cluster, refused, self._now)
                self._reported.add(key)
            elif not why and (key in self._reported or condition(items(cluster, "status", "conditions"), ACCEPTED)):
                # Read: the cache may lack what was written a moment ago.
                await conditions.remove_condition(client, path, await client.get(path), ACCEPTED)
                self._reported.discard(key)
        except NotFound:
            self._reported.discard(key)
        if why and self._limiter.allow((key, expected, REFUSED), cluster_controller.PERIOD):
            self._events.record(cluster_ref(cluster), "Warning", REFUSED, why)

    def _look(self) -> None:
        """Update the metrics, and have refused kubeconfigs reported."""
        caches = self._management.caches
        self._metrics.cache(caches.memory.used, caches.memory.total, caches.left_out)
        for key, connection in self._connections.items():
            self._metrics.cluster(key, connected=all(runner.is_healthy for runner in connection.runners))
            if connection.client.refused_address or key in self._reported:
                self._queue.add(key)
        for key in self._refused:
            self._queue.add(key)


def _namespace_of(key: ClusterKey) -> str:
    return key.partition("/")[0]


Run = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """All that acts while this replica leads; a new one is built each time, so no state survives a lost lead."""

    management: ManagementCache
    clusters: ClusterManager
    controllers: Mapping[str, Run]
    """Controllers that run once, by name; each is restarted after a bug."""
    closers: Sequence[Run]

    def unhealthy(self) -> str | None:
        return self.management.caches.unhealthy()

    async def run(self, identity: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            ready = asyncio.Event()
            tasks.create_task(self.management.run(ready))
            await ready.wait()
            _LOG.info("serving", extra=fields(identity=identity))
            for name, run in self.controllers.items():
                tasks.create_task(cluster_controller.supervise(name, run))
            tasks.create_task(self.clusters.run())

    async def aclose(self) -> None:
        for close in self.closers:
            await close()
