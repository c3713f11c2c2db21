"""Polls every workload cluster of a management cluster: one issuer each, independent of the others.

Promises: a cluster is found by its kubeconfig Secret, as Cluster API writes it, and publishes under its own name only.
An error of one cluster does not affect the others; after an internal error its Secret is tried again. At most
``_CONCURRENCY`` are read at a time. When a cluster is deleted its documents are removed.
Out of scope: reading one cluster, intervals and staleness (``sources``).
Source: Cluster API util/secret/consts.go: ``<cluster>-kubeconfig``, key ``value``, label cluster.x-k8s.io/cluster-name.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.serve.metrics import Metrics
from nodeattest_identity.serve.service import IssuerPaths, RouteTable, issuer_paths
from nodeattest_identity.serve.settings import KubeconfigSecretsSource
from nodeattest_identity.serve.sources import PollConfig, Poller, read_api_server
from nodeattest_kube import client as paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import KubeconfigError
from nodeattest_kube.fair_queue import WorkQueue
from nodeattest_kube.input_scheduler import InputScheduler
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.store import Lookups
from nodeattest_parsing.objects import dig, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject

_SELECTOR: Final = {"labelSelector": "cluster.x-k8s.io/cluster-name"}
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
"""A Kubernetes name, which needs no escaping in a URL."""
_CONCURRENCY: Final = 16
_MAX_BYTES: Final = 256 << 20
"""Of kubeconfigs in memory; one takes some 6 KiB."""
_RESTART_DELAY: Final = 30.0
"""Seconds until the poller of a cluster is restarted after an unexpected error."""

_log = logging.getLogger(__name__)


class _PolledCluster:
    """A workload cluster and its poller."""

    def __init__(self, served: IssuerPaths, fingerprint: str, client: ApiClient) -> None:
        self.served = served
        self.fingerprint = fingerprint
        """Of the kubeconfig."""
        self.client = client
        self.poller: Poller
        self.task: asyncio.Task[None]

    async def read(self) -> tuple[VerifyingKey, ...]:
        """Read its keys with its current kubeconfig."""
        return await read_api_server(self.client, self.served.issuer)

    async def reconnect(self, fingerprint: str, client: ApiClient) -> None:
        """Use another kubeconfig from now on; its documents stay served."""
        old, self.client, self.fingerprint = self.client, client, fingerprint
        await old.close()


class Clusters:
    """All workload clusters, by ``namespace/name``."""

    def __init__(
        self,
        management: ApiClient,
        settings: KubeconfigSecretsSource,
        *,
        routes: RouteTable,
        metrics: Metrics,
        config: PollConfig,
    ) -> None:
        self._settings, self._routes, self._metrics, self._config = settings, routes, metrics, config
        self._connect = partial(ApiClient.from_kubeconfig, addresses=settings.addresses)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kubeconfig")
        self._lookups = Lookups()
        self._input = InputScheduler()
        self._clusters: dict[str, _PolledCluster] = {}
        self._refused: dict[str, str] = {}
        """Fingerprints of kubeconfigs that cannot be used: none is parsed twice."""
        self._queue: WorkQueue[str] = WorkQueue()
        """Names of the Secrets that are to be read again."""
        self._semaphore = asyncio.Semaphore(_CONCURRENCY)
        self._was_ready = False
        self._secrets = Reflector(
            management,
            paths.core_path("secrets", namespace=settings.namespace),
            on_change=self._changed,
            query=_SELECTOR,
            transform=partial(_kubeconfig_only, settings.secret_suffix),
            max_bytes=_MAX_BYTES,
            shares=True,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._secrets.run())
                await self._queue.run(self._work, 1)
        finally:
            self._queue.shut_down()
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._lookups.close()
            await asyncio.gather(*map(self._end, list(self._clusters)))

    def unready_reason(self) -> str | None:
        """Why we are not ready: every cluster must have been polled once. Later errors do not change readiness."""
        if self._was_ready:
            return None
        if not self._secrets.synced:
            return "the management cluster's kubeconfig Secrets were not read yet"
        not_polled = sum(not each.poller.tried for each in self._clusters.values())
        not_polled += self._queue.depth + self._queue.in_flight + self._queue.delayed
        if not_polled:
            return f"{not_polled} workload clusters were not asked yet"
        self._was_ready = True
        return None

    def _changed(self, key: str, _secret: JsonObject | None) -> None:
        self._mark(key)

    def _mark(self, key: str) -> None:
        if key.endswith(self._settings.secret_suffix):
            self._queue.add(key)

    async def _work(self, key: str) -> None:
        await self._reconcile(key)
        self._queue.forget(key)

    async def _reconcile(self, key: str) -> None:
        """Poll a cluster with the kubeconfig that is in its Secret now."""
        kubeconfig = _kubeconfig(self._secrets.get(key))
        served = self._served(key)
        cluster = self._clusters.get(key)
        if kubeconfig is None or served is None:
            self._refused.pop(key, None)
            if cluster is not None:
                await self._end(key)
            return
        fingerprint = hashlib.sha256(kubeconfig).hexdigest()
        if cluster is not None and cluster.fingerprint == fingerprint:
            if cluster.task.done():
                self._start(key, cluster)
            return
        if self._refused.get(key) == fingerprint:
            return
        try:
            client = await asyncio.get_running_loop().run_in_executor(self._thread, self._connect, kubeconfig)
        except KubeconfigError as error:
            self._refused[key] = fingerprint
            _log.error("cannot use the Secret %s: %s", key, error)
            return
        client.use_resolver(self._lookups.of(key.partition("/")[0]))
        client.schedule_input(self._input.cluster(key.partition("/")[0], key))
        self._refused.pop(key, None)
        if cluster is None:
            self._open(key, _PolledCluster(served, fingerprint, client))
        else:
            await cluster.reconnect(fingerprint, client)

    def _open(self, key: str, cluster: _PolledCluster) -> None:
        """Poll a cluster from now on."""
        self._routes.open(cluster.served)
        cluster.poller = Poller(
            [cluster.served],
            cluster.read,
            routes=self._routes,
            metrics=self._metrics,
            config=self._config,
            gate=lambda: self._semaphore,
        )
        self._start(key, cluster)
        self._clusters[key] = cluster

    def _served(self, key: str) -> IssuerPaths | None:
        """Return the paths of a cluster's issuer; None for a Secret of no cluster."""
        namespace, _, name = key.removesuffix(self._settings.secret_suffix).partition("/")
        if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
            return None
        return issuer_paths(f"{self._settings.base_url}/{namespace}/{name}")

    def _start(self, key: str, cluster: _PolledCluster) -> None:
        cluster.task = asyncio.create_task(cluster.poller.run())
        cluster.task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        """Restart the poller later after an unexpected error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "an unexpected error ended the poller of %s; restarting it: please report this", key, exc_info=error
            )
            self._queue.add_after(key, _RESTART_DELAY)

    async def _end(self, key: str) -> None:
        """Remove a cluster and its documents."""
        cluster = self._clusters.pop(key)
        cluster.task.cancel()
        await asyncio.gather(cluster.task, return_exceptions=True)
        self._routes.close(cluster.served)
        self._metrics.forget(cluster.served.issuer)
        await cluster.client.close()


def _kubeconfig_only(suffix: str, secret: JsonObject) -> JsonObject:
    """Keep kubeconfigs only: CA keys and bootstrap data must not be in this process."""
    metadata = {name: dig(secret, "metadata", name) for name in ("name", "namespace", "uid", "resourceVersion")}
    wanted = text(secret, "metadata", "name").endswith(suffix)
    value = text(secret, "data", "value")
    return {"metadata": {**metadata}, "data": {"value": value} if wanted and value else {}}


def _kubeconfig(secret: JsonObject | None) -> bytes | None:
    try:
        return decode_base64(text(secret, "data", "value")) or None
    except ValueError:
        return None
