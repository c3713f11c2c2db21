"""Many workload clusters, one queue: connections come and go with Clusters, policies and kubeconfig Secrets.

A cluster is connected to when a policy (or ``Cluster.spec.security``) opts it in and its kubeconfig is there; others
are left alone. One broken cluster delays no other: each has its own connection, and the queue holds keys only. Clusters
take turns in it, and in a cluster those who ask: a bootstrap token, or a node that renews. Further controllers
(``duties``) work beside the queue, each connection's by themselves, and end with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from nodeattest_controller.controllers.csr.reconciler import Reconciler
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.objects import mapping, text
from nodeattest_controller.runtime.cluster_controller import ClusterController, ClusterRunner
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.ownership import Ownership
from nodeattest_controller.runtime.task_supervisor import TaskSupervisor
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_kube.client import ApiClient, ApiError, KubeconfigError
from nodeattest_kube.workqueue import WorkQueue

__all__ = ["ClusterManager", "RequestKey"]

_LOG: Final = logging.getLogger(__name__)
RequestKey = tuple[ClusterKey, str]
"""A cluster and the name of a CertificateSigningRequest in it."""
METRICS_PERIOD: Final = 5.0
"""Seconds between two readings of queue and connections."""
AFTER_A_BUG: Final = 30.0
"""Seconds until a cluster is connected to anew whose watch a bug ended."""
RBAC_RETRY: Final = 30.0
"""Seconds."""


@dataclass(slots=True)
class _Connection:
    workload: WorkloadClient
    works: tuple[ClusterRunner, ...]
    fingerprint: str
    watches: TaskSupervisor

    def is_well(self, *, judges: bool) -> bool:
        """Tell whether all that is watched is being followed."""
        watched = [*([self.workload.requests] if judges else []), *self.works]
        return self.watches.died is None and all(one.synced and one.last_error is None for one in watched)


class ClusterManager:
    """Connections to all opted-in clusters."""

    def __init__(
        self,
        management: ManagementCache,
        reconciler: Reconciler,
        *,
        ownership: Ownership,
        duties: Sequence[ClusterController],
        judges: bool,
        metrics: Metrics,
        connect: Callable[[bytes], ApiClient],
        now: Callable[[], datetime],
        per_cluster: int,
        per_requester: int,
    ) -> None:
        """``per_cluster``, ``per_requester``: how many requests of one are worked on at the same time.

        ``judges``: whether requests are watched at all; where they are not, nobody needs the right to.
        """
        self._management = management
        self._reconciler = reconciler
        self._ownership = ownership
        self._duties = duties
        self._judges = judges
        self._metrics = metrics
        self._connect = connect
        self._now = now
        self._connections: dict[ClusterKey, _Connection] = {}
        self._dirty: set[ClusterKey] = set()
        self._switching: defaultdict[ClusterKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held while a cluster is connected to or disconnected from."""
        self._judging: defaultdict[ClusterKey, set[asyncio.Task[None]]] = defaultdict(set)
        """What is being worked on."""
        self._wake = asyncio.Event()
        self._changes: Counter[ClusterKey] = Counter()
        self._waiting: defaultdict[ClusterKey, dict[str, str]] = defaultdict(dict)
        """Names of requests, and the provider ID that each waits for."""
        self._queue: WorkQueue[RequestKey] = WorkQueue(groups=self._groups_of, limits=(per_cluster, per_requester))

    def changed(self, cluster: ClusterKey, provider_ids: frozenset[str] | None) -> None:
        """Wake what waits for a change in the management cluster; None: everything, and connect anew if need be."""
        self._changes[cluster] += 1
        waiting = self._waiting[cluster]
        for name in [n for n, wanted in waiting.items() if provider_ids is None or wanted in provider_ids]:
            del waiting[name]
            self._queue.add((cluster, name))
        connection = self._connections.get(cluster)
        for work in connection.works if connection is not None else ():
            work.changed()
        if provider_ids is None:
            for name in list(connection.workload.kubelet_requests) if connection is not None else ():
                self._queue.add((cluster, name))
            self._dirty.add(cluster)
            self._wake.set()

    async def run(self, workers: int) -> None:
        """Serve until cancelled; closes every connection."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_connected())
                tasks.create_task(self._observe())
                tasks.create_task(self._queue.run(self._work, workers))
        finally:
            self._queue.shut_down()
            for key in list(self._connections):
                await self._disconnect(key)

    async def stop(self, cluster: ClusterKey) -> None:
        """End all work in a cluster that is another replica's from now on: afterwards nothing of it is under way."""
        async with self._switching[cluster]:
            if cluster in self._connections:
                await self._disconnect(cluster)
            tasks = list(self._judging[cluster])
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._judging.pop(cluster, None)

    def _groups_of(self, key: RequestKey) -> tuple[ClusterKey, str]:
        """Name cluster and requester; the API server wrote the user name, and nobody can change it."""
        cluster, name = key
        connection = self._connections.get(cluster)
        request = connection.workload.requests.get(name) if connection is not None else None
        return cluster, text(request, "spec", "username") if request is not None else ""

    async def _work(self, key: RequestKey) -> None:
        """Judge in a task of its own, which ``stop`` can end without ending the worker."""
        judging = asyncio.create_task(self._judge(key))
        running = self._judging[key[0]]
        running.add(judging)
        try:
            await asyncio.wait({judging})
        finally:
            judging.cancel()
            await asyncio.gather(judging, return_exceptions=True)
            running.discard(judging)
        if judging.cancelled():
            self._queue.forget(key)
        else:
            judging.result()

    async def _judge(self, key: RequestKey) -> None:
        cluster, name = key
        connection = self._connections.get(cluster)
        if connection is None:
            self._queue.forget(key)
            return
        seen = self._changes[cluster]
        try:
            outcome = await self._reconciler.reconcile(connection.workload, name)
        except ApiError as error:
            delay = self._queue.retry(key)
            _LOG.warning(
                "will try again",
                extra=fields(cluster=cluster, csr=name, error=error.reason, message_=error.message, delay=delay),
            )
            return
        for other in outcome.also:
            self._queue.add((cluster, other))
        if outcome.retry:
            self._queue.retry(key)
            return
        self._queue.forget(key)
        self._waiting[cluster].pop(name, None)
        if outcome.waiting and seen != self._changes[cluster]:
            self._queue.add(key)  # what it waits for may have come while it was judged
            return
        if outcome.waiting:
            self._waiting[cluster][name] = outcome.provider_id
        if outcome.again_after is not None:
            self._queue.add_after(key, outcome.again_after)

    async def _observe(self) -> None:
        while True:
            self._metrics.queue(self._queue.depth, self._queue.oldest)
            for key, connection in self._connections.items():
                well = connection.is_well(judges=self._judges)
                self._metrics.cluster(key, connected=well, passed_over=connection.workload.requests.passed_over)
            await asyncio.sleep(METRICS_PERIOD)

    # Connections

    async def _keep_connected(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty:
                await self._bring_up_to_date(self._dirty.pop())

    async def _bring_up_to_date(self, key: ClusterKey) -> None:
        async with self._switching[key]:
            await self._connect_or_not(key)

    async def _connect_or_not(self, key: ClusterKey) -> None:
        kubeconfig = self._wanted_kubeconfig(key)
        fingerprint = hashlib.sha256(kubeconfig).hexdigest() if kubeconfig else ""
        connection = self._connections.get(key)
        if connection is not None and connection.fingerprint == fingerprint and connection.watches.died is None:
            return
        if connection is not None:
            await self._disconnect(key)
        if kubeconfig is None or not self._ownership.owns(key):
            return
        try:
            client = self._connect(kubeconfig)
        except KubeconfigError as error:
            _LOG.error("cannot use the cluster's kubeconfig", extra=fields(cluster=key, error=str(error)))
            self._metrics.cluster(key, connected=False)
            return
        client.may_send = partial(self._ownership.owns, key)
        self._connections[key] = self._open(key, client, fingerprint)
        _LOG.info("connected", extra=fields(cluster=key, server=client.server))

    def _open(self, key: ClusterKey, client: ApiClient, fingerprint: str) -> _Connection:
        workload = WorkloadClient(key, client, on_request=lambda name: self._queue.add((key, name)), now=self._now)
        works = tuple(work for duty in self._duties if (work := duty.of(key, client)) is not None)
        running = [workload.run(), _allow_bootstrappers(workload)] if self._judges else []
        watches = TaskSupervisor([*running, *(work.run() for work in works)], died=lambda error: self._lost(key, error))
        return _Connection(workload, works, fingerprint, watches)

    def _lost(self, key: ClusterKey, error: BaseException) -> None:
        """Tell of a bug that ended a cluster's watch, and connect anew a while later."""
        _LOG.error(
            "a bug ended the watch of a cluster; connecting anew: please report it",
            exc_info=error,
            extra=fields(cluster=key, delay=AFTER_A_BUG),
        )
        asyncio.get_running_loop().call_later(AFTER_A_BUG, self._connect_anew, key)

    def _connect_anew(self, key: ClusterKey) -> None:
        self._dirty.add(key)
        self._wake.set()

    def _wanted_kubeconfig(self, key: ClusterKey) -> bytes | None:
        cluster = self._management.cluster(key) if self._ownership.owns(key) else None
        if cluster is None or "deletionTimestamp" in mapping(cluster, "metadata"):
            return None
        return self._management.kubeconfig(key) if self._management.opts_in(cluster) else None

    async def _disconnect(self, key: ClusterKey) -> None:
        connection = self._connections.pop(key)
        self._waiting.pop(key, None)
        await connection.watches.close()
        await connection.workload.client.close()
        self._metrics.forget_cluster(key)
        _LOG.info("disconnected", extra=fields(cluster=key))


async def _allow_bootstrappers(workload: WorkloadClient) -> None:
    """Create the bootstrappers' binding, as often as it takes."""
    while True:
        try:
            await workload.ensure_bootstrappers_may_ask()
        except ApiError as error:
            _LOG.warning(
                "cannot see to it that bootstrap tokens may file requests",
                extra=fields(cluster=workload.key, error=str(error)),
            )
            await asyncio.sleep(RBAC_RETRY)
        else:
            return
