"""Kubelet's own serving requests: whose they are, and every way they end."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, cast

import pytest
from builders import make_member
from csr_world import CAPI, CREATED, CSRS, WAIT_LIMIT, OneRound, World, kubelets_request, machine
from csr_world import NODE as WORKER

from nodeattest_controller.controllers.csr.kubelet_checks import RECHECK, KubeletFacts, machine_of_node, node_registered
from nodeattest_controller.controllers.csr.reconciler import Result
from nodeattest_controller.controllers.csr.task import NODE_BURST
from nodeattest_controller.model.csr_request import MAX_KUBELET_CSR_BASE64, parse_kubelet_request
from nodeattest_controller.runtime.informers import node_key
from nodeattest_controller.verification.facts import FactSource
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderID
from nodeattest_sandbox.pki import ClusterPki

NODE = NodeName("node-0")


async def test_a_node_and_its_machine_that_are_not_there_yet_are_waited_for() -> None:
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_FOUND):
        machine_of_node(NODE, [])
    facts, unset = KubeletFacts(cast("FactSource", None), parse_kubelet_request(GOOD)), {"metadata": {"uid": "n"}}
    facts.gathered |= {"machine": (make_member(), None), "node": (unset, None)}
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_READY):
        await node_registered.run(facts)
    facts.gathered["machine"] = (make_member(node_ref_uid="n"), None)
    await node_registered.run(facts)


def test_a_machine_on_its_way_out_does_not_hide_the_one_that_stays() -> None:
    leaving = make_member(name="old", uid="m-1", provider_id=ProviderID("sandbox://old"), deleting=True)
    assert machine_of_node(NODE, [leaving, make_member()]) == make_member()


# Every way one of kubelet's own requests ends


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


async def test_a_nodes_flood_is_not_even_read_once_it_is_over_its_budget(pki: ClusterPki) -> None:
    async with registered(pki) as world:
        for number in range(NODE_BURST + 5):
            world.file_kubelets(f"k-{number}")
            await world.reconcile(f"k-{number}")
        assert world.workload_api.count("GET", f"{CSRS}/k-") == NODE_BURST


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


@pytest.mark.parametrize("changed", ["decided by somebody else", "left to others by the policy"])
async def test_a_request_that_is_not_ours_to_decide_any_more_is_left_alone(pki: ClusterPki, changed: str) -> None:
    async with registered(pki) as world:
        world.file_kubelets()
        await world.seen("k-1")
        path = f"{CSRS}/k-1"

        async def on_call(method: str, called: str) -> None:
            assert (method, called) == ("GET", path)
            world.workload_api.on_call = None
            if changed == "decided by somebody else":
                world.workload_api.put(path, {**world.csr("k-1"), "status": {"conditions": [{"type": "Approved"}]}})
            else:
                world.policy(serving={"kubelet": "Ignore"})
                await world.settle()

        world.workload_api.on_call = on_call
        assert await world.reconciler.reconcile(world.workload, "k-1") == Result()
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


# Kubelet's own serving request as an object: what breaks a rule is denied


GOOD: Final = kubelets_request("csr-x")
PEM: Final = decode_base64(text(GOOD, "spec", "request"))
OTHERS: Final = kubelets_request("csr-y", node=NodeName("node-1"))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"username": "system:node:node-1"}, Reason.REQUESTER_NOT_ALLOWED),
        ({"username": WORKER}, Reason.REQUESTER_NOT_ALLOWED),
        ({"groups": ["system:authenticated"]}, Reason.REQUESTER_NOT_ALLOWED),
        ({"usages": ["server auth"]}, Reason.USAGES_NOT_ALLOWED),
        ({"request": text(OTHERS, "spec", "request")}, Reason.REQUESTER_NOT_ALLOWED),
        ({"request": b64(PEM + PEM)}, Reason.CSR_MALFORMED),
        ({"request": b64(PEM.replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST"))}, Reason.CSR_MALFORMED),
        ({"request": b64(PEM.replace(b"REQUEST-----\n", b"REQUEST-----\nA: b\n\n", 1))}, Reason.CSR_MALFORMED),
        ({"request": "%"}, Reason.CSR_MALFORMED),
        ({"request": "A" * (MAX_KUBELET_CSR_BASE64 + 4)}, Reason.CSR_MALFORMED),
    ],
)
def test_what_kubelet_would_not_file_is_denied(spec: dict[str, JsonValue], reason: Reason) -> None:
    good: JsonObject = {**GOOD, "metadata": {**mapping(GOOD, "metadata"), "uid": "u"}}
    with pytest.raises(Denied, match=reason):
        parse_kubelet_request({**good, "spec": {**mapping(GOOD, "spec"), **spec}})
    with pytest.raises(Denied, match=Reason.CSR_MALFORMED):
        parse_kubelet_request({**GOOD, "metadata": {"name": "no time"}})
