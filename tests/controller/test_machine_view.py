"""Machines of both contracts, and the inventory that finds them."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_member

from nodeattest_controller.model.machine_view import ContractReference, view_of_machine
from nodeattest_controller.model.node_names import NameSources, claimed_names, node_names
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_parsing.values import JsonObject, JsonValue

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
        (ready("BootstrapConfigReady", "Unknown"), False),
        ({"v1beta2": ready("BootstrapConfigReady", "True")}, True),
        ({"bootstrapReady": True}, True),
        ({"bootstrapReady": "true"}, False),
        ({"initialization": {"bootstrapDataSecretCreated": True}}, True),
        ({**ready("BootstrapConfigReady", "False"), "bootstrapReady": True}, False),
    ],
)
def test_both_contracts_tell_whether_bootstrap_data_is_ready(status: JsonObject, expected: bool) -> None:
    assert view_of_machine(machine(status=status)).bootstrap_ready is expected


def test_both_contracts_name_the_infrastructure() -> None:
    old = machine(infrastructureRef={"apiVersion": "infra.io/v1", "kind": "Box", "name": "b"})
    new = machine(infrastructureRef={"apiGroup": "infra.io", "kind": "Box", "name": "b"})
    assert view_of_machine(old).infra == ContractReference("infra.io", "Box", "b", "v1")
    assert view_of_machine(new).infra == ContractReference("infra.io", "Box", "b")
    assert view_of_machine(machine()).infra is None


def test_a_machine_without_a_provider_id_is_found_by_its_uid_and_by_no_provider_id() -> None:
    inventory = Inventory()
    inventory.put_machine("fleet/a", machine("a", provider_id=""))
    inventory.put_machine("fleet/b", machine("b", provider_id=""))
    assert inventory.members(CLUSTER, "") == []
    assert list(inventory.members_of(CLUSTER)) == []
    found = inventory.machine_by_uid(CLUSTER, "uid-a")
    assert found is not None
    assert found.name == "a"
    assert [one.name for one in inventory.members_by_node_name(CLUSTER, "b")] == ["b"]
    assert [one.name for one in inventory.conflicting_members(CLUSTER, "b", "x://other")] == ["b"]


@pytest.mark.parametrize("value", ["", "true"])
def test_a_label_of_any_value_makes_a_machine_one_of_the_control_plane(value: str) -> None:
    labelled: JsonObject = {**machine(), "metadata": {"name": "m", "labels": {"cluster.x-k8s.io/control-plane": value}}}
    annotated: JsonObject = {
        **machine(),
        "metadata": {"name": "m", "annotations": {"cluster.x-k8s.io/control-plane": ""}},
    }
    assert view_of_machine(labelled).is_control_plane
    assert not view_of_machine(annotated).is_control_plane


def test_the_inventory_knows_who_claims_a_name() -> None:
    inventory = Inventory()
    inventory.put_machine("fleet/a", machine("a", provider_id="x://1"))
    inventory.put_machine(
        "fleet/b",
        machine("b", provider_id="x://2", status={"addresses": [{"type": "Hostname", "address": "a"}]}),
    )
    assert {m.name for m in inventory.members_by_node_name(CLUSTER, "a")} == {"a", "b"}
    assert [m.name for m in inventory.members_by_node_name(CLUSTER, "b")] == ["b"]
    full = machine("c", provider_id="x://3", status={"addresses": [{"type": "Hostname", "address": "d.example"}]})
    inventory.put_machine("fleet/c", full)
    assert [m.name for m in inventory.members_by_short_name(CLUSTER, "d")] == ["c"]


# Which names a machine may have, and from which source


HOSTNAME = ("Hostname", "host-0")
METAL = ContractReference("infrastructure.cluster.x-k8s.io", "HetznerBareMetalMachine", "metal-0")


@pytest.mark.parametrize(
    ("changes", "sources", "names"),
    [
        ({}, {}, ["node-0"]),
        ({"infra": ContractReference("g", "k", "infra-0")}, {}, ["node-0", "infra-0"]),
        ({"infra": METAL}, {}, ["node-0", "metal-0", "bm-metal-0"]),
        ({}, {"proven": "proven"}, ["proven", "node-0"]),
        ({"addresses": (("InternalIP", "10.0.0.1"), ("ExternalDNS", "www"))}, {}, ["node-0"]),
        (
            {"addresses": (HOSTNAME, ("InternalDNS", "host-0.lan"))},
            {"proven": "proven"},
            ["proven", "node-0", "host-0", "host-0.lan"],
        ),
        ({"addresses": (HOSTNAME,)}, {"host": {"BareMetalHost": ["rack-1"]}}, ["node-0", "rack-1", "host-0"]),
        ({"addresses": (HOSTNAME,)}, {"registered": "given", "proven": "proven"}, ["given"]),
        ({"node_ref_name": "ref-0", "addresses": (HOSTNAME,)}, {"registered": "given"}, ["ref-0"]),
        ({"node_ref_name": "ref-0"}, {"recorded": "joined"}, ["joined"]),
        ({"given_name": "mine", "node_ref_name": "ref-0"}, {"registered": "given", "recorded": "joined"}, ["mine"]),
        ({"given_name": ""}, {"proven": "proven"}, []),
        ({"kind": "MachinePool"}, {}, []),
        ({"kind": "MachinePool"}, {"proven": "proven"}, ["proven"]),
        ({"kind": "MachinePool"}, {"registered": "given"}, ["given"]),
    ],
)
def test_sources_count_in_order_of_trust(changes: dict[str, object], sources: dict[str, Any], names: list[str]) -> None:
    found = node_names(make_member(**changes), NameSources(**sources))
    assert [claim.name for claim in found] == names
    assert all(claim.source for claim in found)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("Worker-01", "worker-01"),
        ("ip-10-0-0-1.Corp.Example.com", "ip-10-0-0-1.corp.example.com"),
        ("worker-01.corp.example.com.", "worker-01.corp.example.com"),
        ("worker-01..", None),
        ("localhost", None),
        ("localhost.localdomain", None),
        ("LOCALHOST.localdomain.", None),
        ("10.0.0.5", None),
        ("fd00::1", None),
        ("\u212aelvin", None),
        ("worker_01", None),
        ("", None),
    ],
)
def test_addresses_are_normalized_and_what_no_host_has_alone_is_no_name(reported: str, name: str | None) -> None:
    names = claimed_names(make_member(addresses=(("Hostname", reported),)))
    assert names == (("node-0", name) if name else ("node-0",))
