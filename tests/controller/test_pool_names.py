"""Instances of a MachinePool without Machines: only a name that a proof gives them is their node's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace

import pytest
from csr_world import CAPI, NODE, PROVIDER_ID, OneRound, World, attested, machine

from nodeattest_controller.model.node_names import POOL_REMEDY
from nodeattest_kube.errors import Forbidden
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ANNOTATION_REASON, NodeName, ProviderID
from nodeattest_sandbox.pki import ClusterPki

FARM = "/apis/farm.example.com"


class ProvesNames(OneRound):
    """Proves the names that are registered, and no other."""

    def __init__(self) -> None:
        super().__init__()
        self.registered: dict[ProviderID, NodeName] = {}

    def provable_names(self, sections: object) -> Mapping[ProviderID, NodeName]:
        del sections
        return self.registered


class Pool(World):
    """A cluster whose only machine is an instance of a pool."""

    def __init__(self, pki: ClusterPki) -> None:
        self.prover = ProvesNames()
        super().__init__(pki, self.prover)
        self.management_api.remove(f"{CAPI}/machines/m-1")
        self.pool()

    def pool(self, **spec: JsonValue) -> None:
        whole: JsonObject = {"clusterName": "blue", "providerIDList": [PROVIDER_ID], **spec}
        meta: JsonObject = {"name": "workers", "namespace": "fleet"}
        self.management_api.put(
            f"{CAPI}/machinepools/workers",
            {
                "apiVersion": "cluster.x-k8s.io/v1beta1",
                "kind": "MachinePool",
                "metadata": meta,
                "spec": whole,
                "status": {"bootstrapReady": True},
            },
        )

    def has_infrastructure(self, machine_kind: str) -> None:
        """Give the pool an infrastructure object, whose provider has Machines made of a kind, or of none."""
        served: JsonObject = {"resources": [{"name": "farmpools", "kind": "FarmPool"}]}
        self.management_api.documents |= {FARM: {"versions": [{"version": "v1"}]}, f"{FARM}/v1": served}
        status: JsonObject = {"infrastructureMachineKind": machine_kind} if machine_kind else {}
        self.management_api.put(f"{FARM}/v1/namespaces/fleet/farmpools/workers", {"status": status})
        reference: JsonObject = {"apiGroup": "farm.example.com", "kind": "FarmPool", "name": "workers"}
        self.pool(template={"spec": {"infrastructureRef": reference}})

    async def join(self) -> str:
        """Join; returns the reason of the denial, or nothing."""
        await self.settle()
        self.file()
        await self.reconcile()
        return self.condition("Denied")


@pytest.fixture
async def pool(pki: ClusterPki) -> AsyncGenerator[Pool]:
    async with Pool(pki).running() as world:
        assert isinstance(world, Pool)
        yield world


async def test_an_instance_joins_by_a_proven_name_and_serves_no_address_that_nobody_lists(pool: Pool) -> None:
    pool.has_infrastructure("FarmMachine")  # an instance with a proven name needs no Machine
    pool.prover.registered[PROVIDER_ID] = NODE
    pool.prover.answer = replace(attested(), proven_node_name=NODE)
    assert await pool.join() == ""
    assert text(pool.csr(), "status", "certificate")
    pool.policy(serving={"kubelet": "Approve"})
    pool.workload_api.put(f"/api/v1/nodes/{NODE}", {"metadata": {}, "spec": {"providerID": PROVIDER_ID}})
    pool.file_kubelets()
    await pool.reconcile("k-1")
    assert pool.condition("Denied", "k-1") == Reason.ADDRESS_NOT_ALLOWED
    [denied] = items(mapping(pool.csr("k-1"), "status"), "conditions")
    assert "docs/operate.md#serving-certificates" in text(denied, "message")


async def test_each_instance_of_a_pool_joins_by_its_own_name(pool: Pool) -> None:
    second, name = ProviderID("metal://rack-1/2"), NodeName("worker-2")
    pool.pool(providerIDList=[PROVIDER_ID, second])
    pool.prover.registered |= {PROVIDER_ID: NODE, second: name}
    pool.prover.answer = replace(attested(), proven_node_name=NODE)
    assert await pool.join() == ""
    pool.prover.answer = replace(attested(ek="sha256:second"), provider_id=second, proven_node_name=name)
    pool.file("r-2", node=name, provider_id=second)
    await pool.reconcile("r-2")
    assert text(pool.csr("r-2"), "status", "certificate")


async def test_an_instance_that_boots_before_it_has_its_machine_waits_for_it(pool: Pool) -> None:
    pool.has_infrastructure("FarmMachine")
    assert await pool.join() == ""
    assert pool.annotation(ANNOTATION_REASON).startswith("MachineNotFound: ")
    pool.management_api.put(f"{CAPI}/machines/m-1", machine())
    await pool.settle()
    await pool.reconcile()
    assert text(pool.csr(), "status", "certificate")


async def test_while_a_pools_infrastructure_cannot_be_read_its_instances_wait(pool: Pool) -> None:
    pool.has_infrastructure("")
    pool.management_api.fail("GET", "/farmpools/", Forbidden(403, "Forbidden", "no"))
    assert await pool.join() == ""
    assert pool.annotation(ANNOTATION_REASON).startswith("PlatformUnavailable: ")
    await pool.reconcile()
    assert pool.condition("Denied") == "NodeNameMismatch"
    [denied] = items(mapping(pool.csr(), "status"), "conditions")
    assert text(denied, "message") == POOL_REMEDY
