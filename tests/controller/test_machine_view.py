"""Machines of both contracts, and the inventory that finds them."""

from __future__ import annotations

import pytest

from nodeattest_controller.model.machine_view import ContractReference, views_of_machine, views_of_pool
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_kube.jsontypes import JsonObject, JsonValue

CLUSTER = cluster_key("fleet", "c")


def machine(name: str = "m", *, provider_id: str = "x://1", status: JsonValue = None, **spec: JsonValue) -> JsonObject:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "metadata": {"name": name, "namespace": "fleet", "uid": f"uid-{name}"},
        "spec": {"clusterName": "c", "providerID": provider_id, **spec},
        "status": status or {},
    }


def ready(kind: str, status: str) -> JsonObject:
    return {"conditions": [{"type": kind, "status": status}]}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (ready("BootstrapReady", "True"), True),
        (ready("BootstrapReady", "False"), False),
        (ready("BootstrapConfigReady", "True"), True),
        (ready("BootstrapConfigReady", "Unknown"), False),
        ({"v1beta2": ready("BootstrapConfigReady", "True")}, True),
        ({"bootstrapReady": True}, True),
        ({"bootstrapReady": "true"}, False),
        ({"initialization": {"bootstrapDataSecretCreated": True}}, True),
        ({**ready("BootstrapConfigReady", "False"), "bootstrapReady": True}, False),
        ({}, False),
    ],
)
def test_both_contracts_tell_whether_bootstrap_data_is_ready(status: JsonObject, expected: bool) -> None:
    assert views_of_machine(machine(status=status))[0].bootstrap_ready is expected


def test_both_contracts_name_the_infrastructure() -> None:
    old = machine(infrastructureRef={"apiVersion": "infra.io/v1", "kind": "Box", "name": "b"})
    new = machine(infrastructureRef={"apiGroup": "infra.io", "kind": "Box", "name": "b"})
    assert views_of_machine(old)[0].infra == ContractReference("infra.io", "Box", "b", "v1")
    assert views_of_machine(new)[0].infra == ContractReference("infra.io", "Box", "b")
    assert views_of_machine(machine())[0].infra is None


def test_a_machine_without_a_provider_id_is_nobody_yet() -> None:
    assert views_of_machine(machine(provider_id="")) == []


@pytest.mark.parametrize("value", ["", "true"])
def test_a_label_of_any_value_makes_a_machine_one_of_the_control_plane(value: str) -> None:
    labelled: JsonObject = {**machine(), "metadata": {"name": "m", "labels": {"cluster.x-k8s.io/control-plane": value}}}
    annotated: JsonObject = {
        **machine(),
        "metadata": {"name": "m", "annotations": {"cluster.x-k8s.io/control-plane": ""}},
    }
    assert views_of_machine(labelled)[0].is_control_plane
    assert not views_of_machine(annotated)[0].is_control_plane


def test_the_spec_names_the_cluster_and_a_label_does_not() -> None:
    odd = machine()
    odd["metadata"] = {"name": "m", "namespace": "fleet", "labels": {"cluster.x-k8s.io/cluster-name": "other"}}
    assert views_of_machine(odd)[0].cluster_name == "c"


def test_the_inventory_finds_by_exact_provider_id_within_the_cluster() -> None:
    inventory = Inventory()
    inventory.put_machine("fleet/a", machine("a", provider_id="x://1"))
    inventory.put_machine("fleet/b", machine("b", provider_id="x://10"))
    assert [m.name for m in inventory.members(CLUSTER, "x://1")] == ["a"]
    assert inventory.members(cluster_key("fleet", "other"), "x://1") == []
    assert inventory.members(CLUSTER, "X://1") == []


def test_the_inventory_forgets_what_changed_or_went() -> None:
    inventory = Inventory()
    inventory.put_machine("fleet/a", machine("a", provider_id="x://1"))
    inventory.put_machine("fleet/a", machine("a", provider_id="x://2"))
    assert inventory.members(CLUSTER, "x://1") == []
    assert len(inventory.members(CLUSTER, "x://2")) == 1
    inventory.put_machine("fleet/a", None)
    assert inventory.members(CLUSTER, "x://2") == []
    assert inventory.members_by_node_name(CLUSTER, "a") == []


def test_the_inventory_knows_who_claims_a_name() -> None:
    inventory = Inventory()
    inventory.put_machine("fleet/a", machine("a", provider_id="x://1"))
    inventory.put_machine(
        "fleet/b",
        machine("b", provider_id="x://2", status={"addresses": [{"type": "Hostname", "address": "a"}]}),
    )
    assert {m.name for m in inventory.members_by_node_name(CLUSTER, "a")} == {"a", "b"}
    assert inventory.members_by_node_name(CLUSTER, "b") == []


def test_a_pool_counts_once_where_its_machines_are_listed_too() -> None:
    pool = machine("pool", providerIDList=["x://1", "x://2"])
    inventory = Inventory()
    inventory.put_pool("fleet/pool", pool)
    assert [m.kind for m in inventory.members(CLUSTER, "x://1")] == ["MachinePool"]
    inventory.put_machine("fleet/a", machine("a", provider_id="x://1"))
    assert [m.kind for m in inventory.members(CLUSTER, "x://1")] == ["Machine"]
    assert len(views_of_pool(pool)) == 2
