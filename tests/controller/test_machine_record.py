"""MachineRecords and ClusterRecords: read strictly, and held to the rules that Machines are held to."""

from __future__ import annotations

import pytest
from builders import make_request

from nodeattest_controller.model.machine_view import (
    MAX_RECORD_ADDRESSES,
    check_cluster_active,
    cluster_flaw,
    views_of_record,
)
from nodeattest_controller.model.resolver import find_machine
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason, Unavailable

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
    for one, is_paused in ((record(), False), (record(paused=True), True), (by_annotation, True)):
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


# The rules


def machine(name: str = "machine-0", provider_id: str = "sandbox://node-0", **status: JsonValue) -> JsonObject:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Machine",
        "metadata": {"name": name, "namespace": "fleet", "uid": f"uid-{name}"},
        "spec": {"clusterName": "c", "providerID": provider_id},
        "status": {"bootstrapReady": True, **status},
    }


@pytest.mark.parametrize("kind", ["Machine", "MachinePool"])
def test_a_provider_id_that_two_sources_claim_is_nobody_s(kind: str) -> None:
    inventory = Inventory()
    inventory.put_record("fleet/r", record())
    if kind == "Machine":
        inventory.put_machine("fleet/m", machine())
    else:
        pool = machine()
        pool["spec"] = {"clusterName": "c", "providerIDList": ["sandbox://node-0"]}
        inventory.put_pool("fleet/m", pool)
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
