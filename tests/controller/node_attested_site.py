"""Machines on Cluster API's definitions, and the controller ``standing`` at work on them, in the test's process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, cast

from nodeattest_controller.controllers.node_attested.controller import NodeAttestedController
from nodeattest_controller.controllers.node_attested.reconciler import NodeAttestedDeps, NodeAttestedReconciler
from nodeattest_controller.manifests import crds
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.attestation import IssuedCertificate, new_attestation, render_attestation
from nodeattest_controller.model.machine_view import view_of_machine
from nodeattest_controller.runtime.guard import ClusterGuard, LeaderOwnsAll
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_kube.events import EventRecorder
from nodeattest_providers.identifiers import NodeName, ProviderName, Purpose
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.definitions import install_definitions
from nodeattest_sandbox.fleet import create_namespace

Version = Literal["v1beta1", "v1beta2"]
KEY: Final = ClusterKey("fleet/blue")
OWN: Final = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet"
STAMP: Final = "2026-01-01T00:00:00Z"


def prepared(plane: ControlPlane) -> ControlPlane:
    """Install our definitions, and a policy that takes the cluster in."""
    install_definitions(plane.client(), cast("list[JsonMap]", crds()))
    create_namespace(plane.client(), "fleet")
    spec: JsonMap = {"authorizedAttestors": ["tpm"]}
    policy: JsonMap = {"apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeAttestationPolicy",
                       "metadata": {"name": "p", "namespace": "fleet"}, "spec": spec}  # fmt: skip
    plane.client().create(f"{OWN}/nodeattestationpolicies", policy)
    return plane


class Site:
    """The objects of one cluster in one version, as the definitions want them."""

    def __init__(self, client: Client, version: Version) -> None:
        self.client = client
        self.version: Version = version
        self.root = f"/apis/cluster.x-k8s.io/{version}/namespaces/fleet"

    def reference(self, group: str, kind: str) -> JsonMap:
        if self.version == "v1beta1":
            return {"apiVersion": f"{group}.cluster.x-k8s.io/v1beta1", "kind": kind, "name": "x", "namespace": "fleet"}
        return {"apiGroup": f"{group}.cluster.x-k8s.io", "kind": kind, "name": "x"}

    def create(self, kind: str, name: str, spec: JsonMap, status: JsonMap) -> JsonMap:
        plural = f"{kind.lower()}s"
        labels: JsonMap = {"cluster.x-k8s.io/cluster-name": "blue"}
        body: JsonMap = {"apiVersion": f"cluster.x-k8s.io/{self.version}", "kind": kind,
                         "metadata": {"name": name, "namespace": "fleet", "labels": labels}, "spec": spec}  # fmt: skip
        self.client.create(f"{self.root}/{plural}", body)
        return self.client.patch(f"{self.root}/{plural}/{name}/status", {"status": status})

    def cluster(self) -> JsonMap:
        spec: JsonMap = {"infrastructureRef": self.reference("infrastructure", "DevCluster")}
        return self.create("Cluster", "blue", spec, {"phase": "Provisioned"})

    def template(self) -> JsonMap:
        bootstrap: JsonMap = {"dataSecretName": "d"}
        infrastructure = self.reference("infrastructure", "DevMachine")
        return {"clusterName": "blue", "bootstrap": bootstrap, "infrastructureRef": infrastructure}

    def machine(self, name: str, *, node: bool = True) -> JsonMap:
        told: JsonMap = {"type": "InfrastructureReady", "status": "True", "lastTransitionTime": STAMP}
        if self.version == "v1beta2":
            told.update({"reason": "Ready", "message": "ready"})
        status: JsonMap = {"conditions": [told]}
        if node:
            status["nodeRef"] = {"name": name} if self.version == "v1beta2" else {"name": name, "uid": "n-1"}
        return self.create("Machine", name, {**self.template(), "providerID": f"sandbox://{name}"}, status)

    def pool(self, name: str, *ids: str) -> JsonMap:
        spec: JsonMap = {"clusterName": "blue", "providerIDList": [*ids], "template": {"spec": self.template()}}
        return self.create("MachinePool", name, spec, {"phase": "Running"})

    def ledger(self, machine: JsonMap) -> None:
        """Write down that the machine has a certificate."""
        member = view_of_machine(machine)
        now = datetime.now(UTC)
        entry = IssuedCertificate(
            request_name="r", request_uid="u", first_request_uid="", spki="sha256:" + "0" * 64, serial="1f",
            not_before=now, not_after=now + timedelta(days=14), issued_at=now - timedelta(minutes=1), certificate="PEM",
            purpose=Purpose.CLIENT,
        )  # fmt: skip
        known = replace(
            new_attestation(member), node_name=NodeName(member.name), provider=ProviderName("tpm"), issued=(entry,)
        )
        self.client.create(f"{OWN}/machineattestations", cast("JsonMap", render_attestation(known, member, "signer")))

    def conditions(self, plural: str, name: str) -> list[JsonMap]:
        return list(maps_at(self.client.get(f"{self.root}/{plural}/{name}"), "status", "conditions"))

    def said(self, plural: str, name: str) -> tuple[str, str]:
        """Return status and reason of ours."""
        found = [one for one in self.conditions(plural, name) if text_at(one, "type") == "NodeAttested"]
        return (text_at(found[0], "status"), text_at(found[0], "reason")) if found else ("", "")


class Replica(LeaderOwnsAll):
    """The leader, which counts how often it was asked: each reconciliation begins with that."""

    def __init__(self) -> None:
        super().__init__(lambda: True)
        self.asked = 0

    def owns(self, cluster: ClusterKey) -> bool:
        self.asked += 1
        return super().owns(cluster)


@asynccontextmanager
async def at_work(
    plane: ControlPlane, kubeconfig: Path | None = None, *, replica: Replica | None = None, watching: bool = True
) -> AsyncGenerator[NodeAttestedController]:
    """Run the controller on the management cluster's caches, as an administrator or as another user.

    ``watching=False`` stops the watches after the first lists, like watches that are late.
    """
    async with ApiClient.from_kubeconfig_file(kubeconfig or plane.admin_kubeconfig) as client:
        works: list[NodeAttestedReconciler] = []

        def changed(_cluster: ClusterKey, _ids: frozenset[str] | None) -> None:
            for work in works:
                work.changed(None)

        management = ManagementCache(client, namespace=None, on_change=changed)
        ready = asyncio.Event()
        tasks = [asyncio.create_task(management.run(ready))]
        await asyncio.wait_for(ready.wait(), 60)
        if not watching:
            tasks[0].cancel()
        deps = NodeAttestedDeps(
            management=management,
            guard=ClusterGuard(management, replica or Replica()),
            metrics=Metrics(),
            now=lambda: datetime.now(UTC),
            clock=time.monotonic,
        )
        controller = NodeAttestedController(
            deps,
            events=EventRecorder(client, component="test", instance="test", now=lambda: datetime.now(UTC)),
        )
        works.append(controller.for_cluster(KEY, client))
        tasks.append(asyncio.create_task(works[0].run()))
        try:
            yield controller
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
