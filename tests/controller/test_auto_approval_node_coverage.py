"""Which Nodes count as attested: the ledger's own machine under the Node's own name, with a living certificate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nodeattest_controller.controllers.auto_approval.node_coverage import NodeCoverage, is_attested
from nodeattest_controller.model.objects import rfc3339
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_kube.jsontypes import JsonObject, JsonValue

NOW = datetime(2026, 5, 1, tzinfo=UTC)
CLUSTER = cluster_key("fleet", "c")


def machine(name: str = "one", **status: JsonValue) -> JsonObject:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "metadata": {"name": name, "namespace": "fleet", "uid": f"m-{name}"},
        "spec": {"clusterName": "c", "providerID": f"sandbox://{name}"},
        "status": status,
    }


def ledger(
    name: str = "one",
    *,
    node: str = "one",
    owner: str = "m-one",
    ends: timedelta = timedelta(days=1),
    purpose: str = "",
) -> JsonObject:
    entry: JsonObject = {
        "notBefore": rfc3339(NOW - timedelta(days=1)),
        "notAfter": rfc3339(NOW + ends),
        "issuedAt": rfc3339(NOW - timedelta(days=1)),
        **({"purpose": purpose} if purpose else {}),
    }
    owners: list[JsonValue] = [{"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "uid": owner}]
    return {
        "metadata": {"name": f"l-{name}", "namespace": "fleet", "ownerReferences": owners},
        "spec": {"clusterName": "c", "providerID": f"sandbox://{name}", "nodeName": node, "issued": [entry]},
    }


def node(provider_id: str | None = "sandbox://one", **metadata: JsonValue) -> JsonObject:
    spec: JsonObject = {} if provider_id is None else {"providerID": provider_id}
    return {"metadata": {"name": "one", "uid": "n-one", **metadata}, "spec": spec}


def evaluated(
    found: JsonObject, *, machines: list[JsonObject] | None = None, ledgers: list[JsonObject] | None = None
) -> bool:
    inventory = Inventory()
    for number, made in enumerate([machine()] if machines is None else machines):
        inventory.put_machine(f"m{number}", made)
    for number, made in enumerate([ledger()] if ledgers is None else ledgers):
        inventory.put_attestation(f"l{number}", made)
    return is_attested(found, CLUSTER, inventory, NOW)


def test_a_node_whose_machine_has_a_living_certificate_is_attested() -> None:
    assert evaluated(node())


def test_a_node_without_provider_id_is_attested_where_the_machine_refers_to_it() -> None:
    assert evaluated(node(None), machines=[machine(nodeRef={"name": "one", "uid": "n-one"})])
    assert not evaluated(node(None), machines=[machine(nodeRef={"name": "one", "uid": "n-two"})])
    assert not evaluated(node(None))
    assert not evaluated(node(None, uid=""), machines=[machine(nodeRef={"name": "one"})])


@pytest.mark.parametrize(
    ("machines", "ledgers"),
    [
        ([], None),
        (None, []),
        ([], []),
        (None, [ledger(ends=timedelta(seconds=-1))]),
        (None, [ledger(ends=timedelta(0))]),
        (None, [ledger(purpose="serving")]),
        (None, [ledger(node="two")]),
        (None, [ledger(owner="m-before")]),
        (None, [ledger(), ledger("two")]),
        ([machine(), machine() | {"metadata": {"name": "copy", "namespace": "fleet", "uid": "m-copy"}}], None),
        ([machine() | {"metadata": {"name": "one", "namespace": "fleet", "uid": ""}}], [ledger(owner="")]),
    ],
    ids=[
        "no machine",
        "no ledger",
        "nothing",
        "ended",
        "ends now",
        "serving",
        "name",
        "owner",
        "two",
        "copies",
        "no uid",
    ],
)
def test_whatever_is_missing_leaves_the_node_unattested(
    machines: list[JsonObject] | None, ledgers: list[JsonObject] | None
) -> None:
    assert not evaluated(node(), machines=machines, ledgers=ledgers)


def test_another_provider_id_under_the_name_is_another_machine() -> None:
    assert not evaluated(node("sandbox://two"))


def test_nothing_that_a_node_says_of_itself_takes_it_out_of_the_count() -> None:
    said: JsonObject = {"type": "virtual-kubelet", "nodeattest/exempt": "true", "node-role.kubernetes.io/agent": ""}
    assert not evaluated(node(labels=said, annotations=said), ledgers=[])


def test_no_node_at_all_is_no_proof() -> None:
    assert not NodeCoverage().is_complete
    coverage = NodeCoverage()
    coverage.count("a", attested=True)
    assert coverage.is_complete
    coverage.count("b", attested=False)
    assert not coverage.is_complete
