"""Side doors of a workload cluster: closed in order, never a foreign one, and found again when kubeadm reopens them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from auto_approval_kit import (
    BOOTSTRAP,
    CLUSTERS,
    REVIEWED,
    ROTATION,
    asks_in_tree,
    binding_names,
    condition,
    forget_bindings,
    make_bindings,
    register_node,
)
from needs import not_possible
from polling import eventually
from world import CSRS, NAMESPACE, World, built_world

from nodeattest_controller.controllers.auto_approval.approval_block import POLICY_NAME
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import StartControlPlane, controller_manager

ALONE = ("--leader-elect", "false")


@pytest.fixture(scope="module")
def town(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world of its own: whose Nodes matter here."""
    with built_world(start_control_plane, tmp_path_factory.mktemp("town")) as built:
        yield built


@pytest.fixture
def doors(town: World, control_plane_kind: str) -> Iterator[Callable[[], None]]:
    """kubeadm's bindings; call it to let kubeadm make them again."""
    town.set_policy(authorizedAttestors=["insecure"])

    def make() -> None:
        make_bindings(town, real=control_plane_kind == "real")

    make()
    _forget_condition(town)
    yield make
    forget_bindings(town)
    for node in town.workload_admin.list("/api/v1/nodes"):
        town.workload_admin.send("DELETE", f"/api/v1/nodes/{text_at(node, 'metadata', 'name')}")


def _forget_condition(town: World) -> None:
    """Drop what an earlier controller found, which is no word of the next one's."""
    others = maps_at(town.admin.get(CLUSTERS), "status", "conditions")
    kept: list[JsonValue] = [one for one in others if text_at(one, "type") != "SideDoorsClosed"]
    town.admin.patch(f"{CLUSTERS}/status", {"status": {"conditions": kept}})


def reason_is(town: World, reason: str, *, says: str = "", seconds: float = 40.0) -> JsonMap:
    """Wait for a finding, and that it says this."""

    def found() -> JsonMap | None:
        seen = condition(town)
        return seen if text_at(seen, "reason") == reason and says in text_at(seen, "message") else None

    return eventually(found, seconds=seconds, what=f"the condition {reason}, not {condition(town)},")


def joined(town: World, name: str) -> None:
    """Let a machine join attested, and its kubelet register."""
    town.machine(name)
    done = town.agent(name, "insecure").join(town.token())
    assert done.returncode == 0, done.stderr
    register_node(town, name, f"sandbox://{name}")


def told(town: World, reason: str, word: str = "") -> bool:
    found = town.admin.list(f"/api/v1/namespaces/{NAMESPACE}/events")
    return any(text_at(one, "reason") == reason and word in text_at(one, "message") for one in found)


def test_automatic_approval_is_removed_in_order_and_again_when_kubeadm_restores_it(
    town: World, doors: Callable[[], None]
) -> None:
    town.machine("old-1")
    register_node(town, "old-1", "sandbox://old-1")
    with town.controller(*ALONE, log="join.log") as controller:
        town.await_service(controller)
        joined(town, "new-1")
    with town.controller(*ALONE, log="order.log"):
        open_still = reason_is(town, "ClosedForBootstrap", says="1 of 2 Nodes are not in the ledger: old-1")
        assert open_still["status"] == "False"
        assert binding_names(town) & {BOOTSTRAP, ROTATION} == {ROTATION}
    town.workload_admin.send("DELETE", "/api/v1/nodes/old-1")
    doors()
    with town.controller(*ALONE, log="again.log") as controller:
        assert reason_is(town, "Closed")["status"] == "True"
        assert not binding_names(town) & {BOOTSTRAP, ROTATION}
        for binding in (BOOTSTRAP, ROTATION):  # Events are written beside the condition
            eventually(lambda binding=binding: told(town, "SideDoorRemoved", binding), what=f"the Event on {binding}")
        eventually(lambda: told(town, "SideDoorsClosed"), what="the Event on the Cluster")
    assert "Traceback" not in controller.log()


def approved(town: World, name: str) -> bool:
    conditions = maps_at(town.workload_admin.get(f"{CSRS}/{name}"), "status", "conditions")
    return any(text_at(one, "type") == "Approved" for one in conditions)


def asked_for_approval(town: World) -> list[str]:
    """Return the access reviews: with no controller of ours at work, kube-controller-manager's, two an attempt."""
    return [one.uri for one in town.workload.requests() if one.resource == "subjectaccessreviews"]


def test_a_stolen_token_gets_no_in_tree_certificate_after_the_bindings_are_deleted(
    town: World, doors: Callable[[], None], request: pytest.FixtureRequest, control_plane_kind: str
) -> None:
    if control_plane_kind != "real":
        not_possible("approving by itself is the work of kube-controller-manager")
    forget_bindings(town)
    doors()
    stolen = town.workload.token_kubeconfig(town.token())
    assets = Path(request.getfixturevalue("assets"))
    with controller_manager(town.workload, assets, ["csrapproving", "csrsigning"]):
        before = asks_in_tree(town, "anybody", stolen)
        eventually(lambda: approved(town, before), what="the in-tree approval of a request by a token")
        with town.controller(*ALONE, log="stolen.log"):
            reason_is(town, "CertificatesIssued", says="no bootstrap token gets")
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
        town.admin.patch(CLUSTERS, {"metadata": {"annotations": {REVIEWED: now}}})
        by_node = town.workload.client_kubeconfig("system:node:old-2", ["system:nodes"])
        with pytest.raises(ApiRefusal, match=f"ValidatingAdmissionPolicy '{POLICY_NAME}'"):
            asks_in_tree(town, "anybody-else", stolen)
        renewal = asks_in_tree(town, "old-2", by_node)
        eventually(lambda: approved(town, renewal), what="the in-tree approval of a node's renewal")
        with town.controller(*ALONE, log="closed.log") as controller:
            town.await_service(controller)
            joined(town, "new-2")
            reason_is(town, "Closed")
        asked = len(asked_for_approval(town))
        late = asks_in_tree(town, "old-2", by_node)
        eventually(lambda: len(asked_for_approval(town)) >= asked + 6, what="several attempts of the approver")
        assert not approved(town, late)
