"""Watches the CertificateSigningRequests of every connected cluster and has each reconciled from one queue.

Namespaces take turns in it, within one its clusters, and within a cluster the users who ask, so that none delays
another. A request that waits for something in the management cluster is woken when that changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.csr.reconciler import Reconciler
from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.periodic import call_every
from nodeattest_kube.store import MemoryPool
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_parsing.objects import text
from nodeattest_providers.identifiers import ProviderName

_LOG: Final = logging.getLogger(__name__)
RequestKey = tuple[ClusterKey, str]
"""A cluster and the name of a CertificateSigningRequest in it."""
METRICS_PERIOD: Final = 5.0
"""Seconds between two updates of the queue's metrics."""
BINDING_RETRY: Final = 30.0
"""Seconds."""
REPEATED: Final = 6
"""Attempts after which a request is logged that meets a conflict, or a missing object, each time: some ten seconds."""


class CSRController:
    """The queue of all clusters' requests (``ClusterController``)."""

    name = "attestation"

    def __init__(
        self,
        reconciler: Reconciler,
        *,
        has_provider: Callable[[ProviderName], bool],
        metrics: Metrics,
        log: ClusterLog,
        now: Callable[[], datetime],
        memory: MemoryPool,
        workers: int,
    ) -> None:
        """``memory``: of the requests of all clusters. ``workers``: requests that are worked on at the same time."""
        self.reconciler = reconciler
        self.has_provider = has_provider
        self.metrics = metrics
        self.log = log
        self.now = now
        self.memory = memory
        self.runners: dict[ClusterKey, CSRRunner] = {}
        self._workers = workers
        of_namespace = max(1, workers - workers // 4)  # so that all of its clusters, hung, leave the others a quarter
        of_cluster = max(1, workers // 4)
        self.queue: WorkQueue[RequestKey] = WorkQueue(
            groups=self._groups_of,
            limits=(of_namespace, of_cluster, max(1, of_cluster // 2)),
            metrics=metrics.queues.named(self.name),
        )

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> CSRRunner:
        return CSRRunner(self, key, client)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(call_every(METRICS_PERIOD, self._update_metrics))
                tasks.create_task(self.queue.run(self._process, self._workers))
        except asyncio.CancelledError:
            self.queue.shut_down()
            raise

    def _groups_of(self, key: RequestKey) -> tuple[str, ClusterKey, str]:
        cluster, name = key
        runner = self.runners.get(cluster)
        return cluster.partition("/")[0], cluster, runner.requester(name) if runner is not None else ""

    async def _process(self, key: RequestKey) -> None:
        """Reconcile in a task of its own, which the end of the runner can cancel without ending the worker."""
        runner = self.runners.get(key[0])
        if runner is None:
            self.queue.forget(key)
            return
        task = asyncio.create_task(runner.reconcile(key[1]))
        runner.tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            runner.tasks.discard(task)
        if task.cancelled():
            self.queue.forget(key)
        else:
            task.result()

    def _update_metrics(self) -> None:
        self.metrics.oldest_request(self.queue.oldest)
        for runner in self.runners.values():
            runner.count_passed_over()


class CSRRunner:
    """The requests of one connected cluster (``ClusterRunner``)."""

    def __init__(self, controller: CSRController, key: ClusterKey, client: ApiClient) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        """Requests that are being worked on."""
        self.workload = WorkloadClient(
            key,
            client,
            has_provider=controller.has_provider,
            on_request=self._enqueue,
            on_settled=self._settled,
            now=controller.now,
            memory=controller.memory,
        )
        self._controller = controller
        self._queue = controller.queue
        self._key = key
        self._changes = 0
        self._passed_over = 0
        """Requests that were not taken and are counted."""
        self._waiting: dict[str, str] = {}
        """Names of requests, and the provider ID or node that each waits for."""

    @property
    def synced(self) -> bool:
        return self.workload.requests.synced

    @property
    def last_error(self) -> ApiError | None:
        """The error that keeps the requests from being watched; None while there is none."""
        return self.workload.requests.last_error

    async def run(self) -> None:
        self._controller.runners[self._key] = self
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.workload.run())
                tasks.create_task(self._let_bootstrappers_ask())
        finally:
            if self._controller.runners.get(self._key) is self:
                del self._controller.runners[self._key]
            under_way = list(self.tasks)
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            self.count_passed_over()

    async def _let_bootstrappers_ask(self) -> None:
        """Create the bootstrappers' binding once a connection: an operator may take it away afterwards."""
        while True:
            try:
                await self.workload.ensure_bootstrappers_may_ask()
            except ApiError as error:
                level = logging.DEBUG if self.workload.client.has_reported(error) else logging.WARNING
                more = fields(cluster=self._key, error=str(error), delay=BINDING_RETRY)
                _LOG.log(level, "cannot create the binding that lets bootstrap tokens file requests", extra=more)
                await asyncio.sleep(BINDING_RETRY)
            else:
                return

    def count_passed_over(self) -> None:
        """Add the requests that were not taken since the last call to those of earlier connections."""
        count = self.workload.requests.passed_over
        self._controller.metrics.requests_passed_over(self._key, count - self._passed_over)
        self._passed_over = count

    def changed(self, keys: frozenset[str] | None) -> None:
        """Wake the requests that wait for a change; None: all of them, and kubelet's own."""
        self._changes += 1
        for name in [name for name, wanted in self._waiting.items() if keys is None or wanted in keys]:
            del self._waiting[name]
            self._enqueue(name)
        if keys is None:
            for name in list(self.workload.kubelet_requests):
                self._enqueue(name)

    async def reconcile(self, name: str) -> None:
        """Reconcile one request and decide when to do so again."""
        key, changes = (self._key, name), self._changes
        try:
            result = await self._controller.reconciler.reconcile(self.workload, name)
        except ApiError as error:
            delay, is_reported = self._queue.retry(key, error), self.workload.client.has_reported(error)
            if is_reported or self._allows("will try again", name):
                more = fields(cluster=self._key, csr=name, error=error.reason, message_=error.message, delay=delay)
                _LOG.log(logging.DEBUG if is_reported else logging.WARNING, "will try again", extra=more)
            return
        if result.requeue:
            self._retry(key)
            return
        self._queue.drop(key)
        self._waiting.pop(name, None)
        if result.waits_for is not None and changes != self._changes:
            self._queue.add(key)  # what it waits for may have changed while it was worked on
            return
        if result.waits_for is not None:
            self._waiting[name] = result.waits_for
        if result.requeue_after is not None:
            self._queue.add_after(key, result.requeue_after)

    def _retry(self, key: RequestKey) -> None:
        delay = self._queue.retry(key, None)
        message = "a request meets a conflict, or an object that is gone, again and again"
        if self._queue.failures(key) >= REPEATED and self._allows(message, key[1]):
            more = fields(cluster=self._key, csr=key[1], attempts=self._queue.failures(key), delay=delay)
            _LOG.warning(message, extra=more)

    def _allows(self, message: str, name: str) -> bool:
        return self._controller.log.allows(message, self._key, self.requester(name))

    def requester(self, name: str) -> str:
        """Return the user who filed a request, which the API server wrote and nobody can change; empty: none known."""
        request = self.workload.requests.get(name)
        return text(request, "spec", "username") if request is not None else ""

    def _settled(self, name: str, uid: str) -> None:
        """Keep nothing of a request that is open no more: each join leaves one that was denied here."""
        self._queue.drop((self._key, name))
        self._waiting.pop(name, None)
        self._controller.reconciler.settled(self._key, uid)

    def _enqueue(self, name: str) -> None:
        self._queue.add((self._key, name))
