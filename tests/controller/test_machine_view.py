"""Machines of both contracts, records of an operator, and the inventory that finds them."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_member, make_request

from nodeattest_controller.model.machine_view import (
    MAX_RECORD_ADDRESSES,
    ContractReference,
    check_cluster_active,
    cluster_flaw,
    view_of_machine,
    views_of_pool,
    views_of_record,
)
from nodeattest_controller.model.node_names import NameSources, claimed_names, node_names, object_names
from nodeattest_controller.model.resolver import find_machine
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason, Unavailable


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


# Records of an operator: read strictly, and held to the rules that Machines are held to

KEY = "sha256:" + "ab" * 32
OWN = "attestation.cluster.x-k8s.io/v1alpha1"
SPEC: JsonObject = {
    "clusterName": "c",
    "providerID": "sandbox://node-0",
    "nodeName": "node-0",
    "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
    "endorsementKeyHash": KEY,
    "bootstrapTokenID": "abcdef",
    "controlPlane": True,
    "paused": False,
}
METADATA: JsonObject = {"name": "rack-1-unit-7", "namespace": "fleet", "uid": "r-0"}


def record(**changes: JsonValue) -> JsonObject:
    spec: JsonObject = {name: value for name, value in {**SPEC, **changes}.items() if value is not None}
    return {"apiVersion": OWN, "kind": "MachineRecord", "metadata": {**METADATA}, "spec": spec}


def test_a_record_is_paused_by_its_field_or_by_cluster_apis_annotation() -> None:
    annotated: JsonObject = {**METADATA, "annotations": {"cluster.x-k8s.io/paused": ""}}
    by_annotation: JsonObject = {**record(), "metadata": annotated}
    plain = record(endorsementKeyHash=None, bootstrapTokenID=None)
    for one, is_paused in ((record(), False), (plain, False), (record(paused=True), True), (by_annotation, True)):
        assert [view.paused for view in views_of_record(one)] == [is_paused]


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ({"endorsementKeyhash": KEY}, "did you mean 'endorsementKeyHash'?"),
        ({"ek": KEY}, "known are addresses"),
        ({"endorsementKeyHash": KEY.upper()}, "spec.endorsementKeyHash: sha256:"),
        ({"bootstrapTokenID": "abcdef.0123456789abcdef"}, "spec.bootstrapTokenID: the six"),
        ({"nodeName": "Node_0"}, "spec.nodeName: an RFC 1123"),
        ({"providerID": "a\u200bb"}, "spec.providerID: 1 to"),
        ({"clusterName": None, "bootstrapTokenID": None, "endorsementKeyHash": None}, "spec.clusterName: a string"),
        ({"paused": "yes"}, "spec.paused: true or false"),
        ({"addresses": {}}, "spec.addresses: an array"),
        ({"addresses": [{"type": "InternalIP", "address": "10.0.0.7"}] * (MAX_RECORD_ADDRESSES + 1)}, "at most"),
        ({"addresses": ["10.0.0.7"]}, "spec.addresses: an object"),
        ({"addresses": [{"type": "Phone", "address": "7"}]}, "a type of ExternalDNS"),
    ],
)
def test_nobody_joins_by_a_record_that_cannot_be_read_whole(spoilt: dict[str, JsonValue], said: str) -> None:
    [member] = views_of_record(record(**spoilt))
    assert said in member.flaw
    with pytest.raises(Unavailable, match=Reason.RECORD_INVALID) as waits:
        find_machine(make_request(), [member])
    assert said in waits.value.detail


def test_a_spoilt_record_still_claims_what_it_names_and_one_without_a_provider_id_is_no_member() -> None:
    inventory = Inventory()
    inventory.put_record("fleet/rack-1-unit-7", record(extra=1))
    cluster = cluster_key("fleet", "c")
    assert len(inventory.members(cluster, "sandbox://node-0")) == 1
    assert len(inventory.members_by_node_name(cluster, "node-0")) == 1
    assert views_of_record(record(providerID=None)) == views_of_record({}) == []


@pytest.mark.parametrize("kind", ["Machine", "MachinePool"])
def test_a_provider_id_that_two_sources_claim_is_nobody_s(kind: str) -> None:
    inventory = Inventory()
    inventory.put_record("fleet/r", record())
    if kind == "Machine":
        inventory.put_machine("fleet/m", machine(provider_id="sandbox://node-0"))
    else:
        inventory.put_pool("fleet/m", machine(providerIDList=["sandbox://node-0"]))
    with pytest.raises(Denied, match=Reason.MACHINE_AMBIGUOUS) as refused:
        find_machine(make_request(), inventory.members(cluster_key("fleet", "c"), "sandbox://node-0"))
    assert "MachineRecord rack-1-unit-7" in refused.value.got
    inventory.put_record("fleet/r", None)
    assert len(inventory.members(cluster_key("fleet", "c"), "sandbox://node-0")) == 1


# Clusters


@pytest.mark.parametrize(
    ("spec", "said"),
    [({"pause": True}, "did you mean 'paused'?"), ({"paused": "true"}, "spec.paused: true or false"), ({}, "")],
)
def test_a_cluster_record_that_cannot_be_read_whole_stands_as_if_paused(spec: JsonObject, said: str) -> None:
    assert said in cluster_flaw({"kind": "ClusterRecord", "spec": spec})
    assert cluster_flaw({"kind": "Cluster", "spec": spec}) == ""
    if said:
        with pytest.raises(Unavailable, match=Reason.RECORD_INVALID):
            check_cluster_active("fleet/c", {"kind": "ClusterRecord", "spec": spec})
