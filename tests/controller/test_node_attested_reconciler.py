"""The reconciler of NodeAttested in process: whose outcome changes what, and every way in which it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
import yaml
from node_attested_kit import NOW, grant, ledger, machine, refusal
from node_attested_site import KEY, Replica, Site, Version, at_work, prepared
from node_attested_world import OWN, NodeAttestedWorld, claim
from polling import until

from nodeattest_controller.controllers.node_attested.reconciler import (
    FORBIDDEN_PAUSE,
    NODE_PERIOD,
    OBJECT_BURST,
    REFUSED_IN_A_ROW,
    REFUSED_PAUSE,
)
from nodeattest_controller.controllers.node_attested.refusal_recorder import RECORD_PAUSE, STATUS_REMEDY
from nodeattest_controller.model.attestation import new_attestation
from nodeattest_controller.model.machine_view import view_of_machine
from nodeattest_controller.runtime.cluster_controller import CSRIssued
from nodeattest_kube.errors import ApiError, Conflict, Forbidden
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import ControlPlane, start_real, start_sandbox
from nodeattest_sandbox.definitions import install_definitions

BAD, LESS = Reason.PCR_VALUE_NOT_ALLOWED, Reason.ATTESTOR_NOT_AUTHORIZED
ME, OTHER, NEW = machine(0), machine(1), machine(2, node=False)
ATTESTED, NOT_YET = ("True", "Attested"), ("Unknown", "NotYetAttested")
FORBIDDEN = Forbidden(403, "Forbidden", "no")


# What anyone with a bootstrap token can cause


async def test_a_token_and_another_node_change_nothing_of_a_machine_that_has_joined() -> None:
    world = NodeAttestedWorld()
    world.policy(onFailure="DeleteNode")
    path = world.joined(ME)
    async with world.running():
        before, writes = world.shown(path), world.writes()
        for reason in Reason:
            world.controller.refused(claim(ME, reason))
            world.controller.refused(claim(ME, reason, by_node=True, node_name="node-1", username="system:node:node-1"))
        await world.resync(60)
        assert world.shown(path) == before
        assert world.writes()[len(writes) :] == [ledger(ME).name]  # its status alone
        assert world.of_ledger(ledger(ME), "lastVerdict", "verdict") == "Approved"


@pytest.mark.parametrize("known", [None, new_attestation(ME)])
async def test_a_nodes_word_that_it_is_a_machine_makes_nothing_false(known: object) -> None:
    """Cluster API takes ``nodeRef`` from a Node's provider ID, which the node's kubelet writes."""
    world = NodeAttestedWorld()
    path = world.machine(ME, replace(new_attestation(ME), resource_version="1") if known else None)
    async with world.running():
        assert world.said(path) == ("Unknown", "NotAttested")


async def test_an_instance_that_has_yet_to_join_makes_its_pool_unknown_not_false() -> None:
    world = NodeAttestedWorld()
    first, second = (replace(one, kind="MachinePool", uid="p-0", name="pool") for one in (ME, OTHER))
    path = world.pool(first, second)
    world.management_api.remove(
        f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet/machineattestations/{ledger(second).name}"
    )
    async with world.running():
        assert world.said(path) == ("Unknown", "InstancesNotAttested")
        world.controller.refused(claim(second))
        await world.resync(60)
        assert world.said(path) == ("Unknown", "InstancesNotAttested")
        assert text(world.shown(path), "message") == "1 of 2 instances attested"
        world.ledger(second, ledger(second, refused=BAD))
        await world.resync(60)
        assert world.said(path) == ("False", "InstancesNotAttested")


# What the node itself, and time, cause


async def test_a_refusal_of_the_nodes_own_request_reaches_the_ledger_then_the_condition() -> None:
    world = NodeAttestedWorld()
    path = world.joined(ME)
    async with world.running():
        assert world.said(path) == ATTESTED
        world.controller.refused(refusal(BAD))
        await world.settle()
        assert world.said(path) == ("False", BAD)
        assert world.of_ledger(ledger(ME), "lastVerdict", "verdict") == "Denied"
        assert world.writes()[-3:] == [ledger(ME).name, ME.name, ledger(ME).name]
        assert world.refusals(ledger(ME)) == {("Node", BAD)}


@pytest.mark.parametrize("error", [FORBIDDEN, ApiError(500, "InternalError", "broken")])
async def test_a_record_that_cannot_be_written_keeps_no_condition_back(
    error: ApiError, caplog: pytest.LogCaptureFixture
) -> None:
    world = NodeAttestedWorld()
    path = world.joined(ME, refused=LESS, since=NOW)
    other = world.joined(OTHER)
    world.management_api.fail("PATCH", f"{ledger(ME).name}/status", error)
    async with world.running():
        world.controller.refused(claim(ME))
        await world.settle()
        assert world.refusals(ledger(ME)) == set()
        told = ["RefusalsForbidden"] if isinstance(error, Forbidden) else []
        assert world.told() == told
        world.controller.refused(refusal(BAD, provider_id=OTHER.provider_id, node_name=OTHER.name,
                                         username=f"system:node:{OTHER.name}"))  # fmt: skip
        await world.settle()
        assert (world.said(path), world.said(other)) == (("False", LESS), ("False", BAD))
        assert world.refusals(ledger(OTHER)) == set()  # the next one would fail, too
        await world.resync(RECORD_PAUSE)
        assert world.refusals(ledger(ME)) == {("BootstrapToken", BAD)}
        assert world.refusals(ledger(OTHER)) == {("Node", BAD)}
    assert "cannot record refused requests" in caplog.text


async def test_a_certificate_takes_a_refusal_back() -> None:
    world = NodeAttestedWorld()
    path = world.joined(ME, refused=BAD, since=NOW - timedelta(minutes=1))
    async with world.running():
        assert world.said(path) == ("False", BAD)
        world.controller.granted(grant(ME))
        await world.settle()
        assert world.said(path) == ATTESTED


# Ways in which it ends


@pytest.mark.parametrize("how", ["paused cluster", "paused machine", "deleting", "not this replica's", "no Cluster"])
async def test_what_is_not_to_be_touched_is_left_alone(how: str) -> None:
    world = NodeAttestedWorld()
    path = world.joined(ME, refused=BAD)
    world.policy(onFailure="Taint")
    found = world.management_api.objects[path]
    match how:
        case "paused cluster":
            world.cluster(paused=True)
        case "paused machine":
            world.management_api.put(
                path, {**found, "metadata": {**_meta(found), "annotations": {"cluster.x-k8s.io/paused": ""}}}
            )
        case "deleting":
            world.management_api.put(
                path, {**found, "metadata": {**_meta(found), "deletionTimestamp": "2026-01-01T00:00:00Z"}}
            )
        case "no Cluster":
            world.management_api.remove(f"{world.capi}/clusters/c")
        case _:
            world.leads = False
    async with world.running():
        world.controller.refused(refusal(Reason.EVENT_LOG_MISMATCH))
        await world.resync(60)
        assert world.writes() == []


async def test_an_outcome_of_a_cluster_that_is_not_connected_is_passed_over() -> None:
    world = NodeAttestedWorld()
    path = world.joined(ME)
    async with world.running():
        world.controller.refused(refusal(BAD, cluster="fleet/another"))
        world.controller.granted(replace(grant(ME), cluster="fleet/another"))  # pyright: ignore[reportArgumentType]
        await world.settle()
        assert world.said(path) == ATTESTED


async def test_a_record_that_changed_meanwhile_is_read_and_evaluated_again() -> None:
    world = NodeAttestedWorld()
    path = world.joined(ME)
    async with world.running():
        world.management_api.fail("PATCH", "machineattestations/", Conflict(409, "Conflict", "c"))
        world.controller.refused(refusal(BAD))
        await until(lambda: world.said(path) == ("False", BAD), state=lambda: world.said(path))


async def test_a_missing_right_is_told_once_silences_all_and_ends_by_itself() -> None:
    world = NodeAttestedWorld()
    machines = [machine(number, node=False) for number in range(20)]
    paths = [world.machine(one) for one in machines]
    world.management_api.fail("PATCH", "machines/", FORBIDDEN, times=REFUSED_IN_A_ROW)
    async with world.running():
        for _change in range(3):
            await world.resync(1)
        assert len(world.writes()) == len(set(world.writes())) == REFUSED_IN_A_ROW
        assert world.told() == ["StandingForbidden"]
        [event] = [obj for path, obj in world.management_api.objects.items() if "/events/" in path]
        assert text(event, "involvedObject", "kind") == "Cluster"
        assert STATUS_REMEDY in text(event, "message")
        await world.resync(FORBIDDEN_PAUSE)
        shown = [world.said(path) for path in paths]
        assert shown.count(NOT_YET) == len(machines) - REFUSED_IN_A_ROW  # those that were refused come later
        await world.resync(REFUSED_PAUSE)
        assert {world.said(path) for path in paths} == {NOT_YET}


async def test_an_object_that_changes_all_the_time_is_written_within_its_rate() -> None:
    world = NodeAttestedWorld()
    world.joined(ME)
    async with world.running():
        for number in range(3 * OBJECT_BURST):
            reason = (None, BAD)[number % 2]
            world.ledger(ME, ledger(ME, refused=reason))
            await world.resync()
        assert world.writes().count(ME.name) == OBJECT_BURST


# The Node


async def test_a_failing_node_is_recorded_then_treated_then_told_of_and_released_by_a_certificate() -> None:
    world = NodeAttestedWorld()
    world.policy(onFailure="Taint")
    path = world.joined(ME, since=NOW - timedelta(minutes=1))
    async with world.running():
        world.controller.refused(refusal(BAD))
        await world.resync()
        assert world.taints(ME) == ["Taint"]
        assert world.of_ledger(ledger(ME), "onFailure", "action") == "Taint"
        assert "its Node was tainted" in text(world.shown(path), "message")
        world.seconds += 60
        world.controller.granted(grant(ME, at=world.now()))
        await world.resync()
        assert world.taints(ME) == []
        assert world.of_ledger(ledger(ME), "onFailure", "action") == ""
        assert world.told() == ["NodeTainted", "NodeReleased"]


async def test_a_treatment_that_a_process_recorded_and_did_not_live_to_make_is_made() -> None:
    first, second = NodeAttestedWorld(), NodeAttestedWorld()
    for world in (first, second):
        world.policy(onFailure="Taint")
        world.joined(ME, since=NOW - timedelta(minutes=1))
    first.workload_api.fail("PATCH", "/nodes/", ApiError(500, "InternalError", "killed"), times=100)
    async with first.running():
        first.controller.refused(refusal(BAD))
        await first.resync()
        assert (first.taints(ME), first.of_ledger(ledger(ME), "onFailure", "action")) == ([], "Taint")
    path = f"{OWN}/machineattestations/{ledger(ME).name}"
    second.management_api.put(path, first.management_api.objects[path])
    async with second.running():
        await second.resync()
        assert second.taints(ME) == ["Taint"]


async def test_a_node_that_came_back_is_treated_again_after_a_while() -> None:
    world = NodeAttestedWorld()
    world.policy(onFailure="Taint")
    world.joined(ME, refused=BAD)
    async with world.running():
        assert world.taints(ME) == ["Taint"]
        world.workload_api.remove(world.node_path(ME))
        world.workload_api.put(world.node_path(ME), {"spec": {"providerID": ME.provider_id}})
        await world.resync(1)
        assert world.taints(ME) == []
        await world.resync(NODE_PERIOD)
        assert world.taints(ME) == ["Taint"]


async def test_a_failing_node_beyond_the_share_is_told_of_and_left_alone() -> None:
    world = NodeAttestedWorld()
    world.policy(onFailure="Taint", maxFailedShare=1)
    world.joined(ME, refused=BAD)
    world.joined(OTHER, refused=BAD)
    async with world.running():
        await world.resync()
        assert [len(world.taints(one)) for one in (ME, OTHER)].count(1) == 1
        assert "OnFailureWithheld" in world.told()


@pytest.mark.parametrize("node", ["none", "another machine's"])
async def test_a_name_whose_node_is_not_the_machines_is_left_alone(node: str) -> None:
    world = NodeAttestedWorld()
    world.policy(onFailure="DeleteNode")
    world.machine(ME, ledger(ME, refused=BAD), node=False)
    if node != "none":
        world.workload_api.put(world.node_path(ME), {"spec": {"providerID": ProviderID("sandbox://thief")}})
    async with world.running():
        assert world.workload_api.count("DELETE") == world.workload_api.count("PATCH") == 0
        assert world.of_ledger(ledger(ME), "onFailure", "action") == ""


async def test_a_right_on_nodes_that_is_missing_leaves_no_record_and_is_asked_for_again() -> None:
    world = NodeAttestedWorld()
    world.policy(onFailure="Taint")
    path = world.joined(ME, refused=BAD)
    world.workload_api.fail("PATCH", "nodes/", FORBIDDEN)
    async with world.running():
        await world.resync(1)
        assert world.taints(ME) == []
        assert world.told() == ["OnFailureForbidden"]
        assert world.of_ledger(ledger(ME), "onFailure", "action") == ""
        assert world.said(path) == ("False", BAD)
        await world.resync(FORBIDDEN_PAUSE)
        assert world.taints(ME) == ["Taint"]


@pytest.mark.parametrize("how", ["no policy", "Audit", "None"])
async def test_a_node_is_released_by_the_policy_and_left_as_it_is_without_one(how: str) -> None:
    world = NodeAttestedWorld()
    world.policy(onFailure="Taint")
    world.joined(ME, refused=BAD)
    async with world.running():
        assert world.taints(ME) == ["Taint"]
        if how == "no policy":
            world.management_api.remove(
                "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet/nodeattestationpolicies/p"
            )
        elif how == "Audit":
            world.policy(onFailure="Taint", enforcement="Audit")
        else:
            world.policy(onFailure="None")
        await world.resync(NODE_PERIOD)
        assert world.taints(ME) == (["Taint"] if how == "no policy" else [])


def _meta(obj: JsonObject) -> JsonObject:
    found = obj.get("metadata")
    return dict(found) if isinstance(found, dict) else {}


# Where machines stand, on Cluster API's own definitions: one served version at a time, objects that they accept


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
        install_definitions(running.client(), only(version, capi_definitions))
        yield prepared(running)


def only(version: Version, folder: Path) -> list[JsonMap]:
    """Read Cluster API's definitions, with one version that is stored and served: conversion needs its webhooks."""
    found: list[JsonMap] = []
    for kind in ("clusters", "machines", "machinepools"):
        text = (folder / f"cluster.x-k8s.io_{kind}.yaml").read_text()
        definition = cast("JsonMap", yaml.load(text, yaml.CSafeLoader))
        spec = map_at(definition, "spec")
        spec["versions"] = [one for one in maps_at(spec, "versions") if one["name"] == version]
        for one in maps_at(spec, "versions"):
            one.update({"storage": True, "served": True})
        spec.pop("conversion", None)
        found.append(definition)
    return found


@pytest.fixture(scope="module")
def site(plane: ControlPlane, version: Version) -> Site:
    made = Site(plane.client(), version)
    made.cluster()
    return made


async def test_machines_and_pools_say_how_they_stand_beside_others_conditions(plane: ControlPlane, site: Site) -> None:
    site.ledger(site.machine("good"))
    site.machine("unattested")
    site.machine("new", node=False)
    site.pool("pool", "sandbox://good", "sandbox://late")
    async with at_work(plane):
        await until(lambda: site.said("machines", "good") == ("True", "Attested"), "the certificate")
        await until(lambda: site.said("machines", "unattested") == ("Unknown", "NotAttested"), "the stranger")
        await until(lambda: site.said("machines", "new") == ("Unknown", "NotYetAttested"), "the new one")
        await until(lambda: site.said("machinepools", "pool") == ("Unknown", "InstancesNotAttested"), "the pool")
    kept = [text_at(one, "type") for one in site.conditions("machines", "good")]
    assert kept == ["InfrastructureReady", "NodeAttested"]
    ours = site.conditions("machines", "unattested")[1]
    assert ("observedGeneration" in ours) is (site.version == "v1beta2")


async def test_a_condition_is_written_once_while_the_watch_is_late(plane: ControlPlane, site: Site) -> None:
    machine, replica = site.machine("late"), Replica()
    site.ledger(machine)
    granted = CSRIssued(
        cluster=KEY, member=view_of_machine(machine), node_name=NodeName("late"), provider=ProviderName("tpm"),
        purpose=Purpose.CLIENT, serial="1f", not_after=datetime.now(UTC), at=datetime.now(UTC),
    )  # fmt: skip
    before = status_patches(plane, "late")
    async with at_work(plane, replica=replica, watching=False) as controller:
        await until(lambda: site.said("machines", "late") == ("True", "Attested"), "the certificate")
        for _ in range(2):
            asked = replica.asked
            controller.granted(granted)
            await until(lambda asked=asked: replica.asked >= asked + 3, "a reconciliation of the machine")
    assert status_patches(plane, "late") == before + 1


def status_patches(plane: ControlPlane, name: str) -> int:
    patches = [one for one in plane.requests() if (one.verb, one.name, one.subresource) == ("patch", name, "status")]
    return len(patches)
