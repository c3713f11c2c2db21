"""Machines of both contracts, and the inventory that finds them."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_member

from nodeattest_controller.model.machine_view import ContractReference, view_of_machine, views_of_pool
from nodeattest_controller.model.node_names import NameSources, claimed_names, node_names, object_names
from nodeattest_parsing.values import JsonObject, JsonValue


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


def test_both_contracts_name_infrastructure_and_bootstrap_configuration() -> None:
    old = machine(infrastructureRef={"apiVersion": "infra.io/v1", "kind": "Box", "name": "b"})
    new = machine(infrastructureRef={"apiGroup": "infra.io", "kind": "Box", "name": "b"})
    assert view_of_machine(old).infra == ContractReference("infra.io", "Box", "b", "v1")
    assert view_of_machine(new).infra == ContractReference("infra.io", "Box", "b")
    assert view_of_machine(machine()).infra is None
    for names in ({"apiVersion": "b.io/v1"}, {"apiGroup": "b.io"}):
        config = view_of_machine(machine(bootstrap={"configRef": {**names, "kind": "Config", "name": "c"}})).bootstrap
        assert config is not None
        assert (config.group, config.kind, config.name) == ("b.io", "Config", "c")


def test_each_instance_that_a_pool_lists_is_a_member() -> None:
    pool = machine(providerIDList=["x://2", "x://1"])
    assert [view.provider_id for view in views_of_pool(pool)] == ["x://1", "x://2"]


def test_a_label_of_any_value_and_no_annotation_makes_a_machine_one_of_the_control_plane() -> None:
    label = "cluster.x-k8s.io/control-plane"
    metadata: list[JsonObject] = [{"labels": {label: ""}}, {"labels": {label: "true"}}, {"annotations": {label: ""}}]
    assert [view_of_machine({**machine(), "metadata": one}).is_control_plane for one in metadata] == [True, True, False]


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
    machine = make_member(**changes)
    found = node_names(machine, NameSources(**sources))
    assert [claim.name for claim in found] == names
    assert all(claim.source for claim in found)
    if machine.given_name is not None:  # no object's name counts beside it
        assert set(object_names(machine)) <= {"mine"}


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
