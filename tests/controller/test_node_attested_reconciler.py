"""The reconciler of NodeAttested in process: whose outcome changes what, and every way in which it ends."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from counted_calls import calls
from node_attested_world import (
    NOW,
    OWN,
    NodeAttestedWorld,
    certificate,
    claim,
    grant,
    ledger,
    machine,
    record,
    refusal,
)
from polling import until

from nodeattest_controller.controllers.node_attested.reconciler import NODE_PERIOD, OBJECT_BURST, STATUS_REMEDY
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_kube.errors import ApiError, Forbidden
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderID

BAD, LESS = Reason.PCR_VALUE_NOT_ALLOWED, Reason.ATTESTOR_NOT_AUTHORIZED
ME, OTHER, NEW = machine(0), machine(1), machine(2, node=False)
ATTESTED, NOT_YET = ("True", "Attested"), ("Unknown", "NotYetAttested")
FORBIDDEN = Forbidden(403, "Forbidden", "no")


# What the node itself, and time, cause


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
        assert world.refusals(ledger(OTHER)) == {("Node", BAD)}
        await until(lambda: world.refusals(ledger(ME)) == {("BootstrapToken", BAD)})
    assert "cannot record refused requests" in caplog.text


# Ways in which it ends


@pytest.mark.parametrize("how", ["paused cluster", "paused machine", "deleting", "not this replica's", "no Cluster"])
async def test_what_is_not_to_be_touched_is_left_alone(how: str) -> None:
    world = NodeAttestedWorld()
    path = world.joined(ME, refused=BAD)
    world.policy(onFailure="Taint")
    found = world.management_api.objects[path]
    metadata: dict[str, JsonObject] = {
        "paused machine": {"annotations": {"cluster.x-k8s.io/paused": ""}},
        "deleting": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    }
    world.management_api.put(path, {**found, "metadata": {**mapping(found, "metadata"), **metadata.get(how, {})}})
    world.cluster(paused=how == "paused cluster")
    world.leads = how != "not this replica's"
    if how == "no Cluster":
        world.management_api.remove(f"{world.capi}/clusters/c")
    async with world.running():
        world.controller.refused(refusal(Reason.EVENT_LOG_MISMATCH))
        await world.resync(60)
        assert world.writes() == []


async def test_a_missing_right_is_told_once_keeps_nothing_else_back_and_ends_by_itself() -> None:
    world = NodeAttestedWorld()
    machines = [machine(number, node=False) for number in range(20)]
    paths = [world.machine(one) for one in machines]
    world.management_api.fail("PATCH", "machines/", FORBIDDEN, times=3)
    async with world.running():
        for _change in range(3):
            await world.resync(1)
        assert len(world.writes()) == len(set(world.writes())) == len(machines)  # those that failed wait
        assert world.told() == ["StandingForbidden"]
        [event] = [obj for path, obj in world.management_api.objects.items() if "/events/" in path]
        assert text(event, "involvedObject", "kind") == "Cluster"
        assert STATUS_REMEDY in text(event, "message")
        await until(lambda: {world.said(path) for path in paths} == {NOT_YET})


async def test_a_check_of_all_machines_counts_who_joined_under_each_of_two_policies_once() -> None:
    """Counting reads all records of the cluster: for each machine it would cost the square of them."""
    world = NodeAttestedWorld()
    world.management_api.put(f"{OWN}/nodeattestationpolicies/q", {"spec": {"authorizedAttestors": ["tpm"]}})
    for number in range(20):
        world.joined(machine(number))
    async with world.running():
        check = world.reconciler.reconcile()

        def to_its_end() -> None:
            with suppress(StopIteration):
                while True:
                    check.send(None)

        assert calls(to_its_end, of=Inventory.machines_under.__code__) == 2


async def test_another_provider_id_than_the_recorded_one_is_told_of_once() -> None:
    world = NodeAttestedWorld()
    path = world.machine(replace(ME, provider_id=ProviderID("sandbox://other")))
    known = replace(ledger(ME), provider_id_source="infrastructure")
    world.ledger(ME, known)
    async with world.running():
        await world.resync(60)
        assert world.said(path) == ("False", Reason.PROVIDER_ID_CHANGED)
        assert world.told() == [Reason.PROVIDER_ID_CHANGED]


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


def test_the_reconcilers_of_disconnected_clusters_are_forgotten() -> None:
    world, cluster = NodeAttestedWorld(), ClusterKey("fleet/gone")
    reconciler = weakref.ref(world.controller.for_cluster(cluster, world.workload_api))
    gc.collect()
    world.controller.refused(replace(refusal(BAD), cluster=cluster))
    assert reconciler() is None


async def test_a_refusal_is_not_written_over_a_record_that_changed_meanwhile() -> None:
    world, changed = NodeAttestedWorld(), list[str]()
    world.joined(ME)
    path = f"{OWN}/machineattestations/{ledger(ME).name}"
    renewed = replace(ledger(ME), issued=(certificate(issued=NOW + timedelta(minutes=1)),))

    async def renew(method: str, called: str) -> None:
        if (method, called) == ("PATCH", path) and not changed:
            changed.append(called)
            world.management_api.put(path, record(ME, renewed))

    world.management_api.on_call = renew
    async with world.running():
        world.controller.refused(refusal(BAD))
        await world.resync()
        await world.resync(60)
    assert changed
    assert world.of_ledger(ledger(ME), "lastVerdict", "verdict") == "Approved"


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


@pytest.mark.parametrize("node", ["none", "another machine's", "of nobody knows whom"])
async def test_a_name_whose_node_is_not_the_machines_is_left_alone(node: str) -> None:
    world = NodeAttestedWorld()
    world.policy(onFailure="DeleteNode")
    world.machine(ME, ledger(ME, refused=BAD), node=False)
    if node != "none":
        spec: JsonObject = {"providerID": ProviderID("sandbox://thief")} if node == "another machine's" else {}
        world.workload_api.put(world.node_path(ME), {"metadata": {"uid": "of another"}, "spec": spec})
    async with world.running():
        assert world.workload_api.count("DELETE") == world.workload_api.count("PATCH") == 0
        assert world.of_ledger(ledger(ME), "onFailure", "action") == ""


async def test_a_node_that_another_replaced_is_not_deleted_for_it() -> None:
    world = NodeAttestedWorld()
    world.policy(onFailure="DeleteNode")
    world.joined(ME, refused=BAD)
    another: JsonObject = {"metadata": {"uid": "of another"}, "spec": {"providerID": "sandbox://another"}}

    async def replace_it(method: str, path: str) -> None:
        if (method, path) == ("DELETE", world.node_path(ME)):
            world.workload_api.remove(path)
            world.workload_api.put(path, another)

    world.workload_api.on_call = replace_it
    async with world.running():
        assert world.workload_api.count("DELETE") == 1
        await world.resync(60)
    assert text(world.workload_api.objects[world.node_path(ME)], "metadata", "uid") == "of another"


@pytest.mark.parametrize(("refused", "other"), [(ME, OTHER), (OTHER, ME)], ids=["one", "other"])
async def test_a_node_that_may_not_be_changed_has_no_record_is_tried_again_and_keeps_no_other_from_being_treated(
    refused: MachineView, other: MachineView
) -> None:
    """Seen: an admission policy that protects one Node ended the treatment of all."""
    world = NodeAttestedWorld()
    world.policy(onFailure="Taint")
    path, _other = world.joined(refused, refused=BAD), world.joined(other, refused=BAD)
    world.workload_api.fail("PATCH", world.node_path(refused), FORBIDDEN)
    async with world.running():
        assert (world.taints(refused), world.taints(other)) == ([], ["Taint"])
        assert world.of_ledger(ledger(refused), "onFailure", "action") == ""
        assert world.said(path) == ("False", BAD)
        await until(lambda: world.taints(refused) == ["Taint"])
    assert world.told().count("OnFailureForbidden") == 1


@pytest.mark.parametrize("how", ["no policy", "Audit", "None"])
async def test_a_node_is_released_by_the_policy_and_left_as_it_is_without_one(how: str) -> None:
    world = NodeAttestedWorld()
    world.policy(onFailure="Taint")
    world.joined(ME, refused=BAD)
    async with world.running():
        assert world.taints(ME) == ["Taint"]
        if how == "no policy":
            world.management_api.remove(f"{OWN}/nodeattestationpolicies/p")
        elif how == "Audit":
            world.policy(onFailure="Taint", enforcement="Audit")
        else:
            world.policy(onFailure="None")
        await world.resync(NODE_PERIOD)
        assert world.taints(ME) == (["Taint"] if how == "no policy" else [])


# What it says, in both contracts of Cluster API


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_machines_and_pools_say_how_they_stand_beside_others_conditions(version: str) -> None:
    world = NodeAttestedWorld(version)
    good, unattested, new = world.joined(ME), world.machine(OTHER), world.machine(NEW)
    pool = world.pool(*(replace(machine(number), kind="MachinePool", uid="p-0", name="pool") for number in (3, 4)))
    infrastructure: JsonObject = {"type": "InfrastructureReady", "status": "True"}
    status: JsonObject = {"nodeRef": {"name": ME.name}, "conditions": [infrastructure]}
    world.management_api.put(good, {**world.management_api.objects[good], "status": status})
    async with world.running():
        assert [world.said(path) for path in (good, unattested, new, pool)] == [
            ATTESTED,
            ("Unknown", "NotAttested"),
            NOT_YET,
            ATTESTED,
        ]
    [others, ours] = items(world.management_api.objects[good], "status", "conditions")
    assert others == infrastructure
    assert ("observedGeneration" in ours) is (version == "v1beta2")


async def test_an_object_whose_condition_others_take_away_gets_it_a_few_times_and_no_more() -> None:
    world = NodeAttestedWorld()
    path = world.joined(ME)
    bare = world.management_api.objects[path]
    async with world.running():
        for _ in range(2 * OBJECT_BURST):
            world.management_api.put(path, bare)
            await world.resync()
        assert world.writes().count(ME.name) == OBJECT_BURST
