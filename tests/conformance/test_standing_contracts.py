"""Where machines stand, on Cluster API's own definitions: one served version at a time, objects that they accept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, cast

import pytest
import yaml

from nodeattest_controller.clusters.events import EventRecorder
from nodeattest_controller.clusters.inventory import ClusterKey
from nodeattest_controller.clusters.management import Management
from nodeattest_controller.clusters.ownership import Everything
from nodeattest_controller.clusters.verdicts import Refused
from nodeattest_controller.core.clusterapi import machine_members
from nodeattest_controller.core.ledger import Entry, empty, render
from nodeattest_controller.manifests import crds
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.standing.desk import Standing
from nodeattest_controller.standing.work import Ground, StandingWork
from nodeattest_kube.client import ApiClient
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import NodeName, ProviderID, ProviderName, Purpose
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.definitions import install_definitions, keeps_custom_resources
from nodeattest_sandbox.fleet import create_namespace
from nodeattest_sandbox.process import ControlPlane, start_real, start_sandbox

NOT_POSSIBLE = "not possible here:"
Version = Literal["v1beta1", "v1beta2"]
KEY = ClusterKey("fleet/blue")
OWN = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet"
STAMP = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module", params=["sandbox", pytest.param("real", marks=pytest.mark.conformance)])
def kind(request: pytest.FixtureRequest) -> str:
    return cast("str", request.param)


@pytest.fixture(scope="module", params=["v1beta1", "v1beta2"])
def version(request: pytest.FixtureRequest) -> Version:
    return cast("Version", request.param)


@pytest.fixture(scope="module")
def plane(
    kind: str,
    version: Version,
    capi_definitions: Path,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControlPlane]:
    directory = tmp_path_factory.mktemp(f"contracts-{kind}-{version}")
    with ExitStack() as stack:
        if kind == "sandbox":
            running = stack.enter_context(start_sandbox(directory, name="management"))
        else:
            assets = cast("Path", request.getfixturevalue("assets"))
            running = stack.enter_context(start_real(directory, assets, name="management"))
        if not keeps_custom_resources(running):
            pytest.skip(f"{NOT_POSSIBLE} this kube-apiserver dies of custom resources")
        install_definitions(running.client(), only(version, capi_definitions))
        yield prepared(running)


def prepared(plane: ControlPlane) -> ControlPlane:
    install_definitions(plane.client(), cast("list[JsonMap]", crds()))
    create_namespace(plane.client(), "fleet")
    spec: JsonMap = {"authorizedAttestors": ["tpm"]}
    policy: JsonMap = {"apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeAttestationPolicy",
                       "metadata": {"name": "p", "namespace": "fleet"}, "spec": spec}  # fmt: skip
    plane.client().create(f"{OWN}/nodeattestationpolicies", policy)
    return plane


def only(version: Version, folder: Path) -> list[JsonMap]:
    """Read Cluster API's definitions, with one version that is stored and served: conversion needs its webhooks."""
    found: list[JsonMap] = []
    for kind in ("clusters", "machines", "machinepools"):
        definition = cast("JsonMap", yaml.safe_load((folder / f"cluster.x-k8s.io_{kind}.yaml").read_text()))
        spec = map_at(definition, "spec")
        spec["versions"] = [one for one in maps_at(spec, "versions") if one["name"] == version]
        for one in maps_at(spec, "versions"):
            one.update({"storage": True, "served": True})
        spec.pop("conversion", None)
        found.append(definition)
    return found


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
            told.update({"reason": "Ready", "message": "ready"})  # old servers' schema checks take "" for null
        status: JsonMap = {"conditions": [told]}
        if node:
            status["nodeRef"] = {"name": name} if self.version == "v1beta2" else {"name": name, "uid": "n-1"}
        return self.create("Machine", name, {**self.template(), "providerID": f"sandbox://{name}"}, status)

    def pool(self, name: str, *ids: str) -> JsonMap:
        spec: JsonMap = {"clusterName": "blue", "providerIDList": [*ids], "template": {"spec": self.template()}}
        return self.create("MachinePool", name, spec, {"phase": "Running"})

    def ledger(self, machine: JsonMap) -> None:
        """Write down that the machine has a certificate."""
        [member] = machine_members(machine)
        now = datetime.now(UTC)
        entry = Entry(
            request_name="r", request_uid="u", first_request_uid="", spki="sha256:" + "0" * 64, serial="1f",
            not_before=now, not_after=now + timedelta(days=14), issued_at=now - timedelta(minutes=1), certificate="PEM",
            purpose=Purpose.CLIENT,
        )  # fmt: skip
        known = replace(empty(member), node_name=NodeName(member.name), provider=ProviderName("tpm"), issued=(entry,))
        self.client.create(f"{OWN}/machineattestations", cast("JsonMap", render(known, member, "signer")))

    def conditions(self, plural: str, name: str) -> list[JsonMap]:
        return list(maps_at(self.client.get(f"{self.root}/{plural}/{name}"), "status", "conditions"))

    def said(self, plural: str, name: str) -> tuple[str, str]:
        """Return status and reason of ours."""
        found = [one for one in self.conditions(plural, name) if text_at(one, "type") == "NodeAttested"]
        return (text_at(found[0], "status"), text_at(found[0], "reason")) if found else ("", "")


@pytest.fixture(scope="module")
def site(plane: ControlPlane, version: Version) -> Site:
    made = Site(plane.client(), version)
    made.cluster()
    return made


@asynccontextmanager
async def at_work(plane: ControlPlane) -> AsyncGenerator[Standing]:
    """Run the controller ``standing`` on the management cluster's caches."""
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        works: list[StandingWork] = []

        def changed(_cluster: ClusterKey, _ids: frozenset[str] | None) -> None:
            for work in works:
                work.changed()

        management = Management(client, namespace=None, on_change=changed)
        ready = asyncio.Event()
        tasks = [asyncio.create_task(management.run(ready))]
        await asyncio.wait_for(ready.wait(), 30)
        ground = Ground(
            management=management, ownership=Everything(), metrics=Metrics(), now=lambda: datetime.now(UTC),
            clock=time.monotonic,
        )  # fmt: skip
        desk = Standing(ground, events=EventRecorder(client, now=lambda: datetime.now(UTC), instance="test"))
        works.append(desk.of(KEY, client))
        tasks.append(asyncio.create_task(works[0].run()))
        try:
            yield desk
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(200):
        if await asyncio.to_thread(holds):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{what} did not happen")


async def test_machines_and_pools_say_how_they_stand_beside_others_conditions(plane: ControlPlane, site: Site) -> None:
    site.ledger(site.machine("good"))
    site.machine("unattested")
    site.machine("new", node=False)
    site.pool("pool", "sandbox://good", "sandbox://late")
    async with at_work(plane):
        await until(lambda: site.said("machines", "good") == ("True", "Attested"), "the certificate")
        await until(lambda: site.said("machines", "unattested") == ("False", "NotAttested"), "the stranger")
        await until(lambda: site.said("machines", "new") == ("Unknown", "NotYetAttested"), "the new one")
        await until(lambda: site.said("machinepools", "pool") == ("False", "InstancesNotAttested"), "the pool")
    kept = [text_at(one, "type") for one in site.conditions("machines", "good")]
    assert kept == ["InfrastructureReady", "NodeAttested"]
    ours = site.conditions("machines", "unattested")[1]
    assert ("severity" in ours) is (site.version == "v1beta1")
    assert ("observedGeneration" in ours) is (site.version == "v1beta2")


async def test_a_refusal_reaches_ledger_and_condition(plane: ControlPlane, site: Site) -> None:
    site.ledger(site.machine("refused"))
    async with at_work(plane) as desk:
        await until(lambda: site.said("machines", "refused") == ("True", "Attested"), "the certificate")
        desk.refused(
            Refused(
                cluster=KEY, provider_id=ProviderID("sandbox://refused"), node_name=NodeName("refused"),
                username="system:node:refused", by_node=True, provider=ProviderName("tpm"), purpose=Purpose.CLIENT,
                reason=Reason.PCR_VALUE_NOT_ALLOWED, message="", at=datetime.now(UTC),
            )
        )  # fmt: skip
        await until(lambda: site.said("machines", "refused") == ("False", "PCRValueNotAllowed"), "the refusal")


@pytest.mark.parametrize("paused", ["cluster", "machine"])
async def test_what_is_paused_is_left_alone_until_it_is_resumed(plane: ControlPlane, site: Site, paused: str) -> None:
    annotation: JsonMap = {"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}}
    name = f"paused-{paused}"
    cluster, machine = f"{site.root}/clusters/blue", f"{site.root}/machines/{name}"
    if paused == "cluster":
        site.client.patch(cluster, {"spec": {"paused": True}})
    site.machine(name)
    if paused == "machine":
        site.client.patch(machine, annotation)
    async with at_work(plane):
        await asyncio.sleep(2.5)  # longer than changes are gathered
        assert site.said("machines", name) == ("", "")
        if paused == "cluster":
            site.client.patch(cluster, {"spec": {"paused": False}})
        else:
            site.client.patch(machine, {"metadata": {"annotations": None}})
        await until(lambda: site.said("machines", name) == ("False", "NotAttested"), "the word after the pause")


async def test_another_namespaces_machines_are_not_this_clusters(plane: ControlPlane, site: Site) -> None:
    create_namespace(site.client, "other")
    other = Site(site.client, site.version)
    other.root = other.root.replace("/fleet", "/other")
    body: JsonMap = {"apiVersion": f"cluster.x-k8s.io/{site.version}", "kind": "Machine",
                     "metadata": {"name": "foreign"},
                     "spec": {**site.template(), "providerID": "sandbox://foreign"}}  # fmt: skip
    site.client.create(f"{other.root}/machines", body)
    site.machine("witness")
    async with at_work(plane):
        await until(lambda: site.said("machines", "witness") == ("False", "NotAttested"), "the witness")
    assert other.said("machines", "foreign") == ("", "")
