"""A management cluster in memory with Clusters, policies and Secrets, for tests of what runs on its cache."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from fake_api import FakeApi

from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_controller import ReconcilerDeps
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_parsing.values import JsonObject, JsonValue

CAPI = "/apis/cluster.x-k8s.io"
POLICIES = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet/nodeattestationpolicies"


def management_api() -> FakeApi:
    """Make an API server that serves Cluster API."""
    api = FakeApi("https://management.example")
    api.documents[CAPI] = {"preferredVersion": {"version": "v1beta2"}}
    return api


def cluster_path(name: str = "blue", namespace: str = "fleet") -> str:
    return f"{CAPI}/v1beta2/namespaces/{namespace}/clusters/{name}"


def add_cluster(
    api: FakeApi,
    name: str = "blue",
    *,
    namespace: str = "fleet",
    kubeconfig: bytes | None = b"good",
    **spec: JsonValue,
) -> None:
    """Create a Cluster, and its kubeconfig's Secret unless there is none."""
    body: JsonObject = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": name, "labels": {"env": "prod"}},
        "spec": spec,
    }
    api.put(cluster_path(name, namespace), body)
    if kubeconfig is not None:
        data: JsonObject = {"value": base64.b64encode(kubeconfig).decode()}
        secret: JsonObject = {"metadata": {"labels": {"cluster.x-k8s.io/cluster-name": name}}, "data": data}
        api.put(f"/api/v1/namespaces/{namespace}/secrets/{name}-kubeconfig", secret)


def add_policy(api: FakeApi, name: str = "p", *, labels: Mapping[str, str] | None = None, **spec: JsonValue) -> str:
    """Create or change a policy; return its path."""
    selector: JsonObject = {"matchLabels": dict[str, JsonValue](labels or {})}
    body: JsonObject = {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "spec": {"authorizedAttestors": ["tpm"], "clusterSelector": selector, **spec},
    }
    api.put(f"{POLICIES}/{name}", body)
    return f"{POLICIES}/{name}"


def deps_of(
    management: ManagementCache,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    clock: Callable[[], float] = time.monotonic,
    leads: Callable[[], bool] = lambda: True,
    metrics: Metrics | None = None,
) -> ReconcilerDeps:
    """Make what controllers of this cache are built with."""
    return ReconcilerDeps(
        management=management,
        guard=ClusterGuard(management, leads),
        events=EventRecorder(management.client, component="test", instance="test-1", now=now, clock=clock),
        metrics=metrics or Metrics(),
        now=now,
        clock=clock,
    )


@asynccontextmanager
async def cached(api: FakeApi) -> AsyncGenerator[ManagementCache]:
    """Run a cache of it, complete."""
    management = ManagementCache(api, namespace=None)
    async with cache_running(management):
        yield management


@asynccontextmanager
async def cache_running(management: ManagementCache) -> AsyncGenerator[None]:
    """Run a cache, complete."""
    ready = asyncio.Event()
    async with tasks(management.run(ready)):
        await asyncio.wait_for(ready.wait(), 60)
        yield


@asynccontextmanager
async def tasks(*works: Coroutine[Any, Any, None]) -> AsyncGenerator[list[asyncio.Task[None]]]:
    """Run these until the end of the block."""
    running = [asyncio.create_task(work) for work in works]
    try:
        yield running
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class ScriptedController:
    """A controller of clusters whose first runners have bugs; the others run until they are cancelled."""

    name = "scripted"

    def __init__(self, bugs: int = 0) -> None:
        self.bugs = bugs
        self.made = self.running = 0

    def for_cluster(self, key: ClusterKey, client: ApiClient) -> ScriptedRunner:
        assert (key, client.may_send()) == ("fleet/blue", True)
        self.made += 1
        return ScriptedRunner(self)


class ScriptedRunner:
    """One runner of it."""

    synced = True
    last_error: ApiError | None = None

    def __init__(self, controller: ScriptedController) -> None:
        self._controller = controller

    async def run(self) -> None:
        if self._controller.bugs:
            self._controller.bugs -= 1
            raise TypeError("no such attribute")
        self._controller.running += 1
        try:
            await asyncio.Event().wait()
        finally:
            self._controller.running -= 1

    def changed(self, keys: frozenset[str] | None) -> None:
        """Take nothing in."""
