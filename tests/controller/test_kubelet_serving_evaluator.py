"""Whose serving request it is: one Machine by the node's name, and the Node that carries its provider ID."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import make_member

from nodeattest_controller.controllers.kubelet_serving.checks import check_name, check_node, one_machine
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import NodeName, ProviderID

NODE = NodeName("node-0")
OTHER = make_member(name="node-1", uid="m-1", provider_id=ProviderID("sandbox://node-1"))


def test_one_machine_that_stays_is_found() -> None:
    assert one_machine(NODE, [make_member()]) == make_member()


@pytest.mark.parametrize(
    ("candidates", "reason"),
    [
        ([make_member(), OTHER], Reason.MACHINE_AMBIGUOUS),
        ([make_member(deleting=True)], Reason.MACHINE_DELETING),
    ],
)
def test_a_node_of_no_one_machine_that_stays_is_denied(candidates: Sequence[MachineView], reason: Reason) -> None:
    with pytest.raises(Denied) as refused:
        one_machine(NODE, candidates)
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    ("candidates", "reason"),
    [
        ([], Reason.MACHINE_NOT_FOUND),
        ([make_member(paused=True)], Reason.MACHINE_NOT_READY),
        ([make_member(bootstrap_ready=False)], Reason.MACHINE_NOT_READY),
    ],
)
def test_a_nodes_machine_that_is_not_there_yet_is_waited_for(candidates: Sequence[MachineView], reason: Reason) -> None:
    with pytest.raises(Unavailable) as refused:
        one_machine(NODE, candidates)
    assert refused.value.reason is reason


def test_a_machine_on_its_way_out_does_not_hide_the_one_that_stays() -> None:
    leaving = make_member(name="old", uid="m-1", provider_id=ProviderID("sandbox://old"), deleting=True)
    assert one_machine(NODE, [leaving, make_member()]) == make_member()


def test_the_name_must_still_be_the_machines() -> None:
    check_name(NODE, make_member(node_ref_name="node-0"), None)
    check_name(NODE, make_member(kind="MachinePool"), NODE)
    for member in (make_member(node_ref_name="node-1"), make_member(kind="MachinePool")):
        with pytest.raises(Denied) as refused:
            check_name(NODE, member, None)
        assert refused.value.reason is Reason.NODE_NAME_MISMATCH


@pytest.mark.parametrize(
    "node",
    [None, {"metadata": {"uid": "n"}, "spec": {}}, {"metadata": {"uid": "n"}, "spec": {"providerID": ""}}],
)
def test_a_node_that_cannot_be_told_yet_is_waited_for(node: JsonObject | None) -> None:
    with pytest.raises(Unavailable) as refused:
        check_node(make_member(), node)
    assert refused.value.reason is Reason.MACHINE_NOT_READY


def test_a_node_without_provider_id_counts_when_it_is_the_machines_node_ref() -> None:
    check_node(make_member(node_ref_uid="n"), {"metadata": {"uid": "n"}, "spec": {}})
