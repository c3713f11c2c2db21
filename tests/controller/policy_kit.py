"""A management cluster with policies and Clusters, and the parts that write of them, without a controller around."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from polling import until

from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import has_agent
from nodeattest_controller.controllers.policy_status.reconciler import LABEL_RESYNC, RECOUNT, PolicyStatusReconciler
from nodeattest_controller.controllers.signer_names import SignerNamesReconciler
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.supervisor import ChangeBus
from nodeattest_kube.client import ApiClient
from nodeattest_kube.events import EventRecorder
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane

NAMESPACE = "default"
LEADS = "leads"
"""Counts the questions whether a replica leads."""
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
POLICIES = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/nodeattestationpolicies"
CLUSTERS = "/apis/cluster.x-k8s.io/{}/namespaces/" + NAMESPACE + "/clusters"
INFRASTRUCTURE = "/apis/infrastructure.cluster.x-k8s.io/{}/namespaces/" + NAMESPACE + "/devclusters"


class Asked(ClusterGuard):
    """Counts the questions: each reconciliation begins with one."""

    def __init__(self, management: ManagementCache, leads: Callable[[], bool]) -> None:
        super().__init__(management, self._counted)
        self.times = Counter[str]()
        self._leads = leads

    def _counted(self) -> bool:
        self.times[LEADS] += 1
        return self._leads()

    def owns(self, key: ClusterKey) -> bool:
        self.times[key] += 1
        return self._leads()


@dataclass(frozen=True, slots=True)
class Office:
    """The two parts at work."""

    asked: Asked
    management: ManagementCache
    keeper: PolicyStatusReconciler
    publisher: SignerNamesReconciler
    metrics: Metrics

    async def policies_reconciled(self) -> None:
        """Wait for a whole reconciliation of the policies: one begins when the one before has ended."""
        for _ in range(2):
            before = self.asked.times[LEADS]
            self.keeper.changed(NAMESPACE)
            await until(lambda: self.asked.times[LEADS] > before)

    async def cluster_reconciled(self, name: str) -> None:
        """Wait for a whole reconciliation of a cluster's signer names."""
        key = ClusterKey(f"{NAMESPACE}/{name}")
        for _ in range(2):
            before = self.asked.times[key]
            self.publisher.cluster_changed(key, None)
            await until(lambda: self.asked.times[key] > before)


@asynccontextmanager
async def working(
    plane: ControlPlane,
    *,
    leads: Callable[[], bool] = lambda: True,
    serves: bool = True,
    recount: float = RECOUNT,
    has_webhook: bool = False,
    label_resync: float = LABEL_RESYNC,
    kubeconfig: Path | None = None,
) -> AsyncGenerator[Office]:
    """Run both as a term does, on the administrator's client or that of ``kubeconfig``.

    ``recount``: seconds, of policies in conflict; ``label_resync``: of those whose namespace has the webhook's label.
    """
    async with ApiClient.from_kubeconfig_file(kubeconfig or plane.admin_kubeconfig) as client:
        metrics, changes = Metrics(), ChangeBus()
        events = EventRecorder(client, component="test", instance="here", now=lambda: NOW)
        management = ManagementCache(
            client,
            namespace=None,
            on_change=changes.cluster_changed,
            on_policies=changes.policies_changed,
            now=lambda: NOW,
        )
        owner = Asked(management, leads)
        keeper = PolicyStatusReconciler(
            management,
            guard=owner,
            events=events,
            metrics=metrics,
            now=lambda: NOW,
            recount=recount,
            has_webhook=has_webhook,
            configuration="nodeattest-bootstrap-config",
            is_rendered=has_agent,
            label_resync=label_resync,
        )
        publisher = SignerNamesReconciler(management, guard=owner, serves=serves, now=lambda: NOW)
        changes.subscribe_clusters(keeper.cluster_changed)
        changes.subscribe_policies(keeper.changed)
        changes.subscribe_clusters(publisher.cluster_changed)
        ready = asyncio.Event()
        running = [asyncio.create_task(management.run(ready))]
        await asyncio.wait_for(ready.wait(), 60)
        running += [asyncio.create_task(keeper.run()), asyncio.create_task(publisher.run())]
        try:
            yield Office(owner, management, keeper, publisher, metrics)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await events.drain()


def create_policy(client: Client, name: str, *, labels: Mapping[str, str] | None = None, **spec: JsonValue) -> str:
    """Create a policy that selects these labels; return its path."""
    body: JsonMap = {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": name},
        "spec": {"authorizedAttestors": ["tpm"], "clusterSelector": {"matchLabels": dict(labels or {})}, **spec},
    }
    client.create(POLICIES, body)
    return f"{POLICIES}/{name}"


def create_cluster(
    client: Client, name: str, *, labels: Mapping[str, str] | None = None, contract: str = "v1beta2", infra: str = "",
    status: JsonMap | None = None,
) -> str:  # fmt: skip
    """Create a Cluster, and its DevCluster where ``infra`` names one; return its path."""
    group = "infrastructure.cluster.x-k8s.io"
    place: JsonMap = {"apiGroup": group} if contract == "v1beta2" else {"apiVersion": f"{group}/{contract}"}
    reference: JsonMap = {**place, "kind": "DevCluster", "name": infra or name}
    body: JsonMap = {
        "apiVersion": f"cluster.x-k8s.io/{contract}",
        "kind": "Cluster",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"infrastructureRef": reference},
    }
    client.create(CLUSTERS.format(contract), body)
    if infra:
        create_infra(client, infra, contract)
    path = f"{CLUSTERS.format(contract)}/{name}"
    if status is not None:
        client.patch(f"{path}/status", {"status": status})
    return path


def create_infra(client: Client, name: str, contract: str = "v1beta2") -> None:
    body: JsonMap = {
        "apiVersion": f"infrastructure.cluster.x-k8s.io/{contract}",
        "kind": "DevCluster",
        "metadata": {"name": name},
        "spec": {"backend": {"inMemory": {}}},
    }
    client.create(INFRASTRUCTURE.format(contract), body)


def infra_path(name: str, contract: str = "v1beta2") -> str:
    """Return the path of a DevCluster."""
    return f"{INFRASTRUCTURE.format(contract)}/{name}"


def condition_of(obj: JsonMap, kind: str) -> JsonMap:
    """Return a condition, or an empty object."""
    nothing: JsonMap = {}
    return next((one for one in maps_at(map_at(obj, "status"), "conditions") if text_at(one, "type") == kind), nothing)
