"""Polls every workload cluster of a management cluster: one issuer each, independent of the others.

A cluster is found by its kubeconfig Secret, as Cluster API writes it, and publishes under its own name only. An error
of one cluster does not affect the others. At most ``_CONCURRENCY`` are read at a time. When a cluster is deleted its
documents are removed.
Source: Cluster API util/secret/consts.go: ``<cluster>-kubeconfig``, key ``value``, label cluster.x-k8s.io/cluster-name.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from functools import partial
from typing import Final

from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.serve.service import IssuerPaths, Metrics, RouteTable, issuer_paths
from nodeattest_identity.serve.sources import Poller, SourceError, read_api_server
from nodeattest_kube import paths
from nodeattest_kube.addresses import TENANT_ADDRESSES, AddressRules
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import KubeconfigError
from nodeattest_kube.input_scheduler import InputScheduler
from nodeattest_kube.lookups import Lookups
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import metadata, object_identity, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject

_SELECTOR: Final = {"labelSelector": "cluster.x-k8s.io/cluster-name"}
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
"""A Kubernetes name, which needs no escaping in a URL."""
_CONCURRENCY: Final = 16
_MAX_BYTES: Final = 256 << 20
"""Of kubeconfigs in memory; one takes some 6 KiB."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigSecretsSource:
    """Keys of every workload cluster whose kubeconfig is in a Secret of the management cluster."""

    base_url: str
    """The cluster ``C`` of the namespace ``N`` is the issuer ``<base_url>/N/C``; without a slash at the end."""
    namespace: str | None = None
    """Of the Secrets; None for all namespaces."""
    secret_suffix: str = "-kubeconfig"
    addresses: AddressRules = TENANT_ADDRESSES
    """What the kubeconfigs may lead to."""


class _PolledCluster:
    """A workload cluster; its documents stay served while its kubeconfig changes."""

    def __init__(self, served: IssuerPaths) -> None:
        self.served = served
        self.kubeconfig = b""
        self.client: ApiClient | None = None
        self.poller: Poller
        self.task: asyncio.Task[None]

    async def read(self) -> tuple[VerifyingKey, ...]:
        """Read its keys with its current kubeconfig."""
        if self.client is None:
            raise SourceError("unusable", "its kubeconfig cannot be used")
        return await read_api_server(self.client, self.served.issuer)


class Clusters:
    """All workload clusters, by ``namespace/name`` of their Secrets."""

    def __init__(
        self,
        management: ApiClient,
        settings: KubeconfigSecretsSource,
        *,
        routes: RouteTable,
        metrics: Metrics,
        period: float,
        max_stale: float,
    ) -> None:
        self._settings, self._routes, self._metrics = settings, routes, metrics
        self._period, self._max_stale = period, max_stale
        self._lookups = Lookups()
        self._input = InputScheduler()
        self._clusters: dict[str, _PolledCluster] = {}
        self._parsing = asyncio.Semaphore(1)
        self._reading = asyncio.Semaphore(_CONCURRENCY)
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
            await self._secrets.run()
        finally:
            tasks = [cluster.task for cluster in self._clusters.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._lookups.close()

    def unready_reason(self) -> str | None:
        """Say why we are not ready: every cluster must be polled once. Later clusters and errors change nothing."""
        if self._was_ready:
            return None
        if not self._secrets.synced:
            return "the management cluster's kubeconfig Secrets were not read yet"
        not_polled = sum(not each.poller.tried and not each.task.done() for each in self._clusters.values())
        if not_polled:
            return f"{not_polled} workload clusters were not asked yet"
        self._was_ready = True
        return None

    def _changed(self, key: str, secret: JsonObject | None) -> None:
        """Poll a cluster with the kubeconfig that is in its Secret now."""
        try:
            kubeconfig = decode_base64(text(secret or {}, "data", "value"))
        except ValueError:
            kubeconfig = b""
        served = self._served(key) if kubeconfig else None
        cluster = self._clusters.get(key)
        if cluster is not None and (served is None or cluster.kubeconfig != kubeconfig):
            cluster.task.cancel()
        if served is None:
            if cluster is not None:
                del self._clusters[key]
                self._routes.close(cluster.served)
                self._metrics.forget(cluster.served.issuer)
            return
        if cluster is None:
            self._routes.open(served)
            cluster = self._clusters[key] = _PolledCluster(served)
            cluster.poller = Poller(
                [served],
                cluster.read,
                routes=self._routes,
                metrics=self._metrics,
                period=self._period,
                max_stale=self._max_stale,
                gate=self._reading,
            )
        if cluster.kubeconfig != kubeconfig:
            cluster.kubeconfig = kubeconfig
            cluster.task = asyncio.create_task(self._poll(key, cluster))

    async def _poll(self, key: str, cluster: _PolledCluster) -> None:
        try:
            async with self._parsing:
                client = await asyncio.to_thread(
                    ApiClient.from_kubeconfig, cluster.kubeconfig, addresses=self._settings.addresses
                )
        except KubeconfigError as error:
            _log.error("cannot use the Secret %s: %s", key, error)
            cluster.client = None
            await cluster.poller.run()  # what was read before is served no longer than ``max_stale``
            return
        namespace = key.partition("/")[0]
        client.use_resolver(self._lookups.of(namespace))
        client.schedule_input(self._input.cluster(namespace, key))
        cluster.client = client
        async with client:
            while True:
                try:
                    await cluster.poller.run()
                except Exception:  # noqa: BLE001 - one cluster's error must not end another's poller
                    _log.exception("an unexpected error ended the poller of %s; restarting it: please report this", key)
                await asyncio.sleep(self._period)

    def _served(self, key: str) -> IssuerPaths | None:
        """Return the paths of a cluster's issuer; None for a Secret of no cluster."""
        if not key.endswith(self._settings.secret_suffix):
            return None
        namespace, _, name = key.removesuffix(self._settings.secret_suffix).partition("/")
        if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
            return None
        return issuer_paths(f"{self._settings.base_url}/{namespace}/{name}")


def _kubeconfig_only(suffix: str, secret: JsonObject) -> JsonObject:
    """Keep kubeconfigs only: CA keys and bootstrap data must not be in this process."""
    value = text(secret, "data", "value") if text(secret, "metadata", "name").endswith(suffix) else ""
    return {"metadata": object_identity(metadata(secret)), "data": {"value": value}}
