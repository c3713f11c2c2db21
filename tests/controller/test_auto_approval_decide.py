"""What is removed and what is said: nothing but kubeadm's own, in order, and "closed" only where nobody passes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from nodeattest_controller.controllers.auto_approval.decide import (
    BESIDES,
    BLOCK_NOT_VERIFIED,
    WAITING_FOR_CLUSTER_INFO,
    AllowedPairs,
    ApprovalReason,
    AuditFacts,
    Finding,
    cannot_verify,
    decide,
    with_certificates,
)
from nodeattest_controller.controllers.auto_approval.permissions import (
    KUBEADM_BOOTSTRAP,
    KUBEADM_ROTATION,
    NodeCoverage,
    Permission,
    RoleGrant,
    SubjectKind,
    is_attested,
)
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_parsing.objects import rfc3339
from nodeattest_parsing.values import JsonObject, JsonValue

TOKENS, NODES = SubjectKind.BOOTSTRAPPERS, SubjectKind.NODES
NODE, SELF = Permission.NODE_CLIENT, Permission.SELF_NODE_CLIENT


def grant(name: str, subject: SubjectKind, permission: Permission, *, kubeadms: bool = True) -> RoleGrant:
    return RoleGrant(
        name=name,
        uid="u",
        resource_version="1",
        role="r",
        permissions=frozenset({permission}),
        to=frozenset({subject}),
        is_kubeadm_default=kubeadms,
    )


BOOTSTRAP = grant(KUBEADM_BOOTSTRAP, TOKENS, NODE)
ROTATION = grant(KUBEADM_ROTATION, NODES, SELF)
FOREIGN = grant("foreign", TOKENS, NODE, kubeadms=False)
FOREIGN_ROTATION = grant("kubespray:system:nodes", NODES, SELF, kubeadms=False)
ALL = NodeCoverage(nodes=3)
LATE = NodeCoverage(nodes=3, unattested=1, names=("old-1",))
NOBODY: AllowedPairs = frozenset()


def facts(
    *grants: RoleGrant, allowed: AllowedPairs | None = None, coverage: NodeCoverage = ALL, enforce: bool = True
) -> AuditFacts:
    seen = frozenset((who, permission) for one in grants for who in one.to for permission in one.permissions)
    return AuditFacts(grants=grants, allowed=seen if allowed is None else allowed, coverage=coverage, enforce=enforce)


@pytest.mark.parametrize(
    ("given", "removes", "status", "reason"),
    [
        (facts(), (), ConditionStatus.TRUE, ApprovalReason.CLOSED),
        (facts(BOOTSTRAP, ROTATION), (BOOTSTRAP,), ConditionStatus.FALSE, ApprovalReason.OPEN),
        (facts(BOOTSTRAP, coverage=LATE), (BOOTSTRAP,), ConditionStatus.FALSE, ApprovalReason.OPEN),
        (facts(ROTATION), (ROTATION,), ConditionStatus.FALSE, ApprovalReason.CLOSED_FOR_BOOTSTRAP),
        (facts(ROTATION, coverage=LATE), (), ConditionStatus.FALSE, ApprovalReason.CLOSED_FOR_BOOTSTRAP),
        (facts(ROTATION, coverage=NodeCoverage()), (), ConditionStatus.FALSE, ApprovalReason.CLOSED_FOR_BOOTSTRAP),
        (facts(FOREIGN), (), ConditionStatus.FALSE, ApprovalReason.FOREIGN_BINDING),
        (facts(FOREIGN, BOOTSTRAP), (BOOTSTRAP,), ConditionStatus.FALSE, ApprovalReason.FOREIGN_BINDING),
        (facts(FOREIGN, ROTATION), (), ConditionStatus.FALSE, ApprovalReason.FOREIGN_BINDING),
        (facts(FOREIGN, allowed=NOBODY), (), ConditionStatus.FALSE, ApprovalReason.FOREIGN_BINDING),
        (facts(FOREIGN_ROTATION, ROTATION), (ROTATION,), ConditionStatus.FALSE, ApprovalReason.FOREIGN_BINDING),
        (facts(allowed=frozenset({(TOKENS, NODE)})), (), ConditionStatus.FALSE, ApprovalReason.FOREIGN_AUTHORIZER),
        (
            facts(ROTATION, allowed=frozenset({(TOKENS, NODE), (NODES, SELF)})),
            (),
            ConditionStatus.FALSE,
            ApprovalReason.FOREIGN_AUTHORIZER,
        ),
        (facts(BOOTSTRAP, enforce=False), (), ConditionStatus.FALSE, ApprovalReason.AUDIT),
        (facts(ROTATION, enforce=False), (), ConditionStatus.FALSE, ApprovalReason.AUDIT),
        (facts(FOREIGN, enforce=False), (), ConditionStatus.FALSE, ApprovalReason.AUDIT),
        (facts(allowed=frozenset({(NODES, NODE)}), enforce=False), (), ConditionStatus.FALSE, ApprovalReason.AUDIT),
        (facts(enforce=False), (), ConditionStatus.TRUE, ApprovalReason.CLOSED),
        (facts(coverage=LATE), (), ConditionStatus.TRUE, ApprovalReason.CLOSED),
    ],
)
def test_each_finding_has_its_act_and_its_words(
    given: AuditFacts, removes: tuple[RoleGrant, ...], status: ConditionStatus, reason: ApprovalReason
) -> None:
    decision = decide(given)
    assert decision.remove == removes
    assert (decision.finding.status, decision.finding.reason) == (status, reason)
    assert decision.finding.message


@pytest.mark.parametrize("doubt", [WAITING_FOR_CLUSTER_INFO, BLOCK_NOT_VERIFIED, cannot_verify("?")])
@pytest.mark.parametrize("given", [facts(), facts(ROTATION, coverage=LATE), facts(coverage=LATE)])
def test_nothing_is_called_closed_while_there_is_doubt(given: AuditFacts, doubt: Finding) -> None:
    finding = decide(replace(given, doubt=doubt)).finding
    assert (finding.status, finding.reason, finding.message) == (ConditionStatus.UNKNOWN, doubt.reason, doubt.message)


@pytest.mark.parametrize("given", [facts(), facts(BOOTSTRAP), facts(FOREIGN)])
def test_an_issued_certificate_decides_the_reason_and_the_message_keeps_the_rest(given: AuditFacts) -> None:
    finding = decide(given).finding
    assert with_certificates(finding, "") == finding
    found = with_certificates(finding, "two certificates")
    assert (found.status, found.reason) == (ConditionStatus.FALSE, ApprovalReason.CERTIFICATES_ISSUED)
    assert found.message == f"two certificates{BESIDES}{finding.message}"


def test_the_message_names_bindings_nodes_and_the_remedy() -> None:
    said = decide(facts(FOREIGN, FOREIGN_ROTATION, coverage=LATE)).finding.message
    assert "kubectl delete clusterrolebinding foreign kubespray:system:nodes" in said
    assert "1 of 3 Nodes are not in the ledger: old-1" in said
    assert "nodeattest machines adopt" in said
    audit = decide(facts(BOOTSTRAP, coverage=LATE, enforce=False)).finding.message
    assert f"would delete ClusterRoleBinding {KUBEADM_BOOTSTRAP}" in audit
    assert "old-1" in audit


# Which Nodes count as attested: the ledger's own machine under the Node's own name, with a living certificate


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


def test_nothing_that_a_node_says_of_itself_takes_it_out_of_the_count() -> None:
    said: JsonObject = {"type": "virtual-kubelet", "nodeattest/exempt": "true", "node-role.kubernetes.io/agent": ""}
    assert not evaluated(node(labels=said, annotations=said), ledgers=[])
