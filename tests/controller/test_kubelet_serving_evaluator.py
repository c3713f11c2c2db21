"""Kubelet's own serving requests: whose they are, and every way they end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from builders import make_member
from csr_world import CAPI, CREATED, CSRS, PROVIDER_ID, WAIT_LIMIT, OneRound, World, machine
from csr_world import NODE as WORKER

from nodeattest_controller.controllers.csr.reconciler import Result
from nodeattest_controller.controllers.kubelet_serving.checks import RECHECK, check_node, one_machine
from nodeattest_controller.controllers.kubelet_serving.evaluator import KubeletServingEvaluator
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import mapping, text
from nodeattest_controller.runtime.management_cache import node_key
from nodeattest_kube.client import Conflict, NotFound
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import NodeName, ProviderID
from nodeattest_sandbox.pki import ClusterPki

NODE = NodeName("node-0")
OTHER = make_member(name="node-1", uid="m-1", provider_id=ProviderID("sandbox://node-1"))


def test_one_machine_that_stays_is_found() -> None:
    assert one_machine(NODE, [make_member()]) == make_member()


@pytest.mark.parametrize(
    ("candidates", "reason"),
    [
        ([make_member(), OTHER], Reason.MACHINE_AMBIGUOUS),
        ([make_member(deleting=True)], Reason.MACHINE_DELETING),
    ],
)
def test_a_node_of_no_one_machine_that_stays_is_denied(candidates: Sequence[MachineView], reason: Reason) -> None:
    with pytest.raises(Denied) as refused:
        one_machine(NODE, candidates)
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    ("candidates", "reason"),
    [
        ([], Reason.MACHINE_NOT_FOUND),
        ([make_member(paused=True)], Reason.MACHINE_NOT_READY),
        ([make_member(bootstrap_ready=False)], Reason.MACHINE_NOT_READY),
    ],
)
def test_a_nodes_machine_that_is_not_there_yet_is_waited_for(candidates: Sequence[MachineView], reason: Reason) -> None:
    with pytest.raises(Unavailable) as refused:
        one_machine(NODE, candidates)
    assert refused.value.reason is reason


def test_a_machine_on_its_way_out_does_not_hide_the_one_that_stays() -> None:
    leaving = make_member(name="old", uid="m-1", provider_id=ProviderID("sandbox://old"), deleting=True)
    assert one_machine(NODE, [leaving, make_member()]) == make_member()


@pytest.mark.parametrize(
    "node",
    [None, {"metadata": {"uid": "n"}, "spec": {}}, {"metadata": {"uid": "n"}, "spec": {"providerID": ""}}],
)
def test_a_node_that_cannot_be_told_yet_is_waited_for(node: JsonObject | None) -> None:
    with pytest.raises(Unavailable) as refused:
        check_node(make_member(), node)
    assert refused.value.reason is Reason.MACHINE_NOT_READY


def test_a_node_without_provider_id_counts_when_it_is_the_machines_node_ref() -> None:
    check_node(make_member(node_ref_uid="n"), {"metadata": {"uid": "n"}, "spec": {}})


# Every way one of kubelet's own requests ends


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


@asynccontextmanager
async def registered(pki: ClusterPki, **policy: JsonValue) -> AsyncGenerator[World]:
    """A cluster whose node has registered, and a policy that approves unless it says otherwise."""
    async with World(pki, OneRound()).running() as world:
        world.join_node()
        spec: dict[str, JsonValue] = {"serving": {"kubelet": "Approve"}, **policy}
        world.policy(**spec)
        await world.settle()
        yield world


async def test_names_and_addresses_of_the_nodes_machine_are_approved_and_not_signed(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        world.file_kubelets()
        assert await world.reconcile("k-1") == Result()
        assert world.condition("Approved", "k-1") == "AddressesVerified"
        assert not text(world.csr("k-1"), "status", "certificate")
    labels = {"provider": "kubelet", "verdict": "approve", "reason": ""}
    assert world.metrics.registry.get_sample_value("nodeattest_verdicts_total", labels) == 1


@pytest.mark.parametrize("policy", [{"serving": {}}, {"serving": {"kubelet": "Ignore"}}, {"allowPigs": True}])
async def test_what_the_policy_does_not_have_decided_here_is_not_even_read(
    pki: ClusterPki, policy: dict[str, JsonValue]
) -> None:
    async with registered(pki, **policy) as world:
        world.file_kubelets()
        assert await world.reconcile("k-1") == Result()
        assert ("GET", f"{CSRS}/k-1") not in world.workload_api.calls
        assert not world.workload_api.writes("k-1")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"address": "127.0.0.1"}, Reason.ADDRESS_NOT_ALLOWED),
        ({"usages": ["client auth"]}, Reason.USAGES_NOT_ALLOWED),
        ({"username": "system:node:another"}, Reason.REQUESTER_NOT_ALLOWED),
    ],
)
async def test_what_breaks_a_rule_is_denied(pki: ClusterPki, change: dict[str, str], reason: Reason) -> None:
    async with registered(pki) as world:
        world.file_kubelets(**change)  # pyright: ignore[reportArgumentType] - an address, or parts of the spec
        assert await world.reconcile("k-1") == Result()
        assert world.condition("Denied", "k-1") == reason


async def test_an_address_that_the_machine_does_not_list_yet_is_waited_for(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        world.file_kubelets(address="10.0.0.2")
        assert (await world.reconcile("k-1")).requeue_after
        assert not world.condition("Denied", "k-1")


async def test_an_audit_reports_what_it_would_deny_and_leaves_the_request_to_others(pki: ClusterPki) -> None:
    async with registered(pki, enforcement="Audit") as world:
        world.file_kubelets(address="127.0.0.1")
        assert await world.reconcile("k-1") == Result()
        assert not world.workload_api.writes("k-1")
        await world.events.drain()
        assert Reason.ADDRESS_NOT_ALLOWED in world.warnings()


async def test_a_node_that_has_not_registered_is_waited_for_and_denied_after_the_limit(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        world.workload_api.remove(f"/api/v1/nodes/{WORKER}")
        world.file_kubelets()
        waiting = await world.reconcile("k-1")
        assert waiting.requeue_after == RECHECK
        assert waiting.waits_for == node_key(WORKER)
        assert not world.condition("Denied", "k-1")
        world.now = CREATED + timedelta(seconds=WAIT_LIMIT + 1)
        assert await world.reconcile("k-1") == Result()
        assert world.condition("Denied", "k-1") == Reason.MACHINE_NOT_READY


async def test_a_request_that_somebody_else_decided_meanwhile_is_left_alone(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        world.file_kubelets()
        await world.seen("k-1")
        path = f"{CSRS}/k-1"

        async def on_call(method: str, called: str) -> None:
            if (method, called) == ("GET", path):
                world.workload_api.on_call = None
                world.workload_api.put(path, {**world.csr("k-1"), "status": {"conditions": [{"type": "Approved"}]}})

        world.workload_api.on_call = on_call
        assert await world.reconciler.reconcile(world.workload, "k-1") == Result()
        assert not world.workload_api.writes("k-1")


async def test_a_request_that_is_gone_is_left_alone(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        world.file_kubelets()
        await world.seen("k-1")
        world.workload_api.fail("GET", "k-1", NotFound(404, "NotFound", "gone"))
        assert await world.reconciler.reconcile(world.workload, "k-1") == Result()
        assert not world.workload_api.writes("k-1")


async def test_a_request_that_changed_before_its_approval_is_evaluated_again(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        world.file_kubelets()
        world.workload_api.fail("PUT", "k-1", Conflict(409, "Conflict", "changed"))
        assert (await world.reconcile("k-1")).requeue
        assert await world.reconcile("k-1") == Result()
        assert world.condition("Approved", "k-1")


async def test_a_policy_that_changes_before_the_approval_decides(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        csr = world.file_kubelets()
        world.policy(serving={"kubelet": "Ignore"})
        await world.settle()
        evaluator = KubeletServingEvaluator(
            world.management, facts_of=world.facts_of, events=world.events, metrics=world.metrics
        )
        await evaluator.approve(world.workload, csr)
        assert not world.workload_api.writes("k-1")


NODE_REF: JsonObject = {"name": WORKER, "uid": "n-1"}
REFERRED: Sequence[JsonValue] = [{"type": "Hostname", "address": WORKER}, {"type": "InternalIP", "address": "10.0.0.1"}]


async def test_a_node_that_has_joined_is_not_kept_from_a_serving_certificate_by_a_guest_that_lists_its_name(
    pki: ClusterPki,
) -> None:
    async with registered(pki) as world:
        world.management_api.put(f"{CAPI}/machines/m-1", named_machine(WORKER))
        lists: list[JsonValue] = [{"type": kind, "address": WORKER} for kind in ("Hostname", "ExternalDNS")]
        world.management_api.put(f"{CAPI}/machines/m-2", machine("m-2", "metal://rack-1/2", addresses=lists))
        await world.settle()
        world.file_kubelets()
        assert await world.reconcile("k-1") == Result()
        assert world.condition("Approved", "k-1") == "AddressesVerified"


def named_machine(infrastructure: str) -> JsonObject:
    """A joined Machine whose infrastructure object has a name."""
    found = machine(nodeRef=NODE_REF, addresses=[*REFERRED])
    reference: JsonObject = {"apiGroup": "infrastructure.x-k8s.io", "kind": "MetalMachine", "name": infrastructure}
    return {**found, "spec": {**mapping(found, "spec"), "infrastructureRef": reference}}


async def test_a_node_whose_guest_chose_its_name_gets_no_certificate_for_a_place_that_another_machine_lists(
    pki: ClusterPki,
) -> None:
    """It joined by the host name that its guest reported, which is another machine's DNS name."""
    async with registered(pki) as world:
        world.management_api.put(f"{CAPI}/machines/m-1", named_machine("m-1"))
        lists: list[JsonValue] = [{"type": "ExternalDNS", "address": WORKER}]
        joined: JsonObject = {"name": "victim", "uid": "n-2"}
        victim = machine("m-2", "metal://rack-1/2", nodeRef=joined, addresses=lists)
        world.management_api.put(f"{CAPI}/machines/m-2", victim)
        await world.settle()
        world.file_kubelets()
        assert await world.reconcile("k-1") == Result()
        assert world.condition("Denied", "k-1") == Reason.ADDRESS_NOT_ALLOWED


async def test_two_machines_with_one_node_ref_are_ambiguous_as_before(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        for name, provider_id in (("m-1", PROVIDER_ID), ("m-2", "metal://rack-1/2")):
            found = machine(name, provider_id, nodeRef=NODE_REF, addresses=[*REFERRED])
            world.management_api.put(f"{CAPI}/machines/{name}", found)
        await world.settle()
        world.file_kubelets()
        assert await world.reconcile("k-1") == Result()
        assert world.condition("Denied", "k-1") == Reason.MACHINE_AMBIGUOUS


async def test_an_address_that_another_guest_lists_is_still_nobodys(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        world.management_api.put(f"{CAPI}/machines/m-1", machine(nodeRef=NODE_REF, addresses=[*REFERRED]))
        lists: list[JsonValue] = [{"type": "InternalIP", "address": "10.0.0.1"}]
        world.management_api.put(f"{CAPI}/machines/m-2", machine("m-2", "metal://rack-1/2", addresses=lists))
        await world.settle()
        world.file_kubelets()
        assert await world.reconcile("k-1") == Result()
        assert world.condition("Denied", "k-1") == Reason.ADDRESS_NOT_ALLOWED


async def test_a_name_of_two_machines_is_denied_and_the_event_is_about_no_machine(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        addresses: list[JsonValue] = [{"type": "Hostname", "address": WORKER}]
        world.management_api.put(f"{CAPI}/machines/m-2", machine("m-2", "metal://rack-1/2", addresses=addresses))
        await world.settle()
        world.file_kubelets()
        assert await world.reconcile("k-1") == Result()
        assert world.condition("Denied", "k-1") == Reason.MACHINE_AMBIGUOUS
