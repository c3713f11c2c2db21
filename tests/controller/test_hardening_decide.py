"""What is removed and what is said: nothing but kubeadm's own, in order, and "closed" only where nobody passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeattest_controller.hardening.decide import (
    BESIDES,
    Facts,
    Passes,
    Unverified,
    Why,
    block_not_verified,
    decide,
    is_initialized,
    waiting_for_cluster_info,
    with_certificates,
)
from nodeattest_controller.hardening.doors import KUBEADM_BOOTSTRAP, KUBEADM_ROTATION, Door, Grant, Who
from nodeattest_controller.hardening.standing import NAMED, Census
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_kube.jsontypes import JsonObject

TOKENS, NODES = Who.BOOTSTRAPPERS, Who.NODES
NODE, SELF = Door.NODE_CLIENT, Door.SELF_NODE_CLIENT


def grant(name: str, who: Who, door: Door, *, kubeadms: bool = True) -> Grant:
    return Grant(
        name=name,
        uid="u",
        resource_version="1",
        role="r",
        doors=frozenset({door}),
        to=frozenset({who}),
        is_kubeadms=kubeadms,
    )


BOOTSTRAP = grant(KUBEADM_BOOTSTRAP, TOKENS, NODE)
ROTATION = grant(KUBEADM_ROTATION, NODES, SELF)
FOREIGN = grant("foreign", TOKENS, NODE, kubeadms=False)
FOREIGN_ROTATION = grant("kubespray:system:nodes", NODES, SELF, kubeadms=False)
ALL = Census(nodes=3)
LATE = Census(nodes=3, unattested=1, names=("old-1",))
NOBODY: Passes = frozenset()


def facts(*grants: Grant, passes: Passes | None = None, census: Census = ALL, enforce: bool = True) -> Facts:
    seen = frozenset((who, door) for one in grants for who in one.to for door in one.doors)
    return Facts(grants=grants, passes=seen if passes is None else passes, census=census, enforce=enforce)


@pytest.mark.parametrize(
    ("given", "removes", "status", "reason"),
    [
        (facts(), (), ConditionStatus.TRUE, Why.CLOSED),
        (facts(BOOTSTRAP, ROTATION), (BOOTSTRAP,), ConditionStatus.FALSE, Why.OPEN),
        (facts(BOOTSTRAP, census=LATE), (BOOTSTRAP,), ConditionStatus.FALSE, Why.OPEN),
        (facts(ROTATION), (ROTATION,), ConditionStatus.FALSE, Why.CLOSED_FOR_BOOTSTRAP),
        (facts(ROTATION, census=LATE), (), ConditionStatus.FALSE, Why.CLOSED_FOR_BOOTSTRAP),
        (facts(ROTATION, census=Census()), (), ConditionStatus.FALSE, Why.CLOSED_FOR_BOOTSTRAP),
        (facts(FOREIGN), (), ConditionStatus.FALSE, Why.FOREIGN_BINDING),
        (facts(FOREIGN, BOOTSTRAP), (BOOTSTRAP,), ConditionStatus.FALSE, Why.FOREIGN_BINDING),
        (facts(FOREIGN, ROTATION), (), ConditionStatus.FALSE, Why.FOREIGN_BINDING),
        (facts(FOREIGN, passes=NOBODY), (), ConditionStatus.FALSE, Why.FOREIGN_BINDING),
        (facts(FOREIGN_ROTATION, ROTATION), (ROTATION,), ConditionStatus.FALSE, Why.FOREIGN_BINDING),
        (facts(passes=frozenset({(TOKENS, NODE)})), (), ConditionStatus.FALSE, Why.FOREIGN_AUTHORIZER),
        (
            facts(ROTATION, passes=frozenset({(TOKENS, NODE), (NODES, SELF)})),
            (),
            ConditionStatus.FALSE,
            Why.FOREIGN_AUTHORIZER,
        ),
        (facts(BOOTSTRAP, enforce=False), (), ConditionStatus.FALSE, Why.AUDIT),
        (facts(ROTATION, enforce=False), (), ConditionStatus.FALSE, Why.AUDIT),
        (facts(FOREIGN, enforce=False), (), ConditionStatus.FALSE, Why.AUDIT),
        (facts(passes=frozenset({(NODES, NODE)}), enforce=False), (), ConditionStatus.FALSE, Why.AUDIT),
        (facts(enforce=False), (), ConditionStatus.TRUE, Why.CLOSED),
        (facts(census=LATE), (), ConditionStatus.TRUE, Why.CLOSED),
    ],
)
def test_each_finding_has_its_act_and_its_words(
    given: Facts, removes: tuple[Grant, ...], status: ConditionStatus, reason: Why
) -> None:
    decision = decide(given)
    assert decision.remove == removes
    assert (decision.finding.status, decision.finding.reason) == (status, reason)
    assert decision.finding.message


@pytest.mark.parametrize(
    "doubt", [waiting_for_cluster_info(), block_not_verified(), Unverified(Why.CANNOT_VERIFY, "?")]
)
@pytest.mark.parametrize("given", [facts(), facts(ROTATION, census=LATE), facts(census=LATE)])
def test_nothing_is_called_closed_while_there_is_doubt(given: Facts, doubt: Unverified) -> None:
    finding = decide(replace(given, unverified=doubt)).finding
    assert (finding.status, finding.reason, finding.message) == (ConditionStatus.UNKNOWN, doubt.reason, doubt.message)


@pytest.mark.parametrize(
    "given", [facts(BOOTSTRAP, ROTATION), facts(FOREIGN), facts(passes=frozenset({(TOKENS, NODE)}))]
)
def test_doubt_keeps_nothing_from_being_removed_and_hides_nothing_that_is_open(given: Facts) -> None:
    assert decide(replace(given, unverified=waiting_for_cluster_info())) == decide(given)


@pytest.mark.parametrize("given", [facts(), facts(BOOTSTRAP), facts(FOREIGN)])
def test_a_certificate_that_was_issued_outweighs_everything_and_hides_nothing(given: Facts) -> None:
    finding = decide(given).finding
    assert with_certificates(finding, "") == finding
    found = with_certificates(finding, "two certificates")
    assert (found.status, found.reason) == (ConditionStatus.FALSE, Why.CERTIFICATES_ISSUED)
    assert found.message == f"two certificates{BESIDES}{finding.message}"


def test_nothing_foreign_is_ever_removed_whatever_else_is_found() -> None:
    everything = facts(BOOTSTRAP, ROTATION, FOREIGN, FOREIGN_ROTATION, replace(FOREIGN, name=KUBEADM_BOOTSTRAP))
    for given in (everything, replace(everything, grants=everything.grants[::-1])):
        assert all(one.is_kubeadms for one in decide(given).remove)


def test_the_message_names_bindings_nodes_and_the_remedy() -> None:
    said = decide(facts(FOREIGN, FOREIGN_ROTATION, census=LATE)).finding.message
    assert "kubectl delete clusterrolebinding foreign kubespray:system:nodes" in said
    assert "1 of 3 Nodes are not in the ledger: old-1" in said
    assert "nodeattest machines adopt" in said
    audit = decide(facts(BOOTSTRAP, census=LATE, enforce=False)).finding.message
    assert f"would delete ClusterRoleBinding {KUBEADM_BOOTSTRAP}" in audit
    assert "old-1" in audit


def test_a_message_names_some_nodes_and_counts_the_rest() -> None:
    census = Census()
    for number in range(5000):
        census.count(f"n-{number}", attested=False)
    assert len(census.names) == NAMED
    assert f"n-{NAMED - 1} and {5000 - NAMED} more" in str(census)
    many = [grant(f"b-{number:03}", TOKENS, NODE, kubeadms=False) for number in range(300)]
    assert len(decide(facts(*many)).finding.message) < 2000


@pytest.mark.parametrize(
    ("status", "initialized"),
    [
        ({"initialization": {"controlPlaneInitialized": True}}, True),
        ({"initialization": {"controlPlaneInitialized": False}}, False),
        ({"controlPlaneReady": True}, True),
        ({"controlPlaneReady": "true"}, False),
        ({"conditions": [{"type": "ControlPlaneInitialized", "status": "True"}]}, True),
        ({"conditions": [{"type": "ControlPlaneInitialized", "status": "Unknown"}]}, False),
        ({"v1beta2": {"conditions": [{"type": "ControlPlaneInitialized", "status": "True"}]}}, True),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, False),
        ({}, False),
    ],
)
def test_a_control_plane_has_come_up_in_either_contract(status: JsonObject, initialized: bool) -> None:
    assert is_initialized({"status": status}) is initialized


def test_a_cluster_that_an_operator_wrote_down_is_there() -> None:
    assert is_initialized({"kind": "ClusterRecord", "status": {}})
    assert not is_initialized({"kind": "Cluster", "status": {}})
