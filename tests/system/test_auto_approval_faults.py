"""Side doors under faults: deaths around a deletion, a binding that changes under the hand, lists that break off."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from auto_approval_kit import (
    BINDINGS,
    BOOTSTRAP,
    ROTATION,
    binding_names,
    condition,
    forget_bindings,
    grant,
    make_bindings,
)
from polling import eventually
from world import Controller, World, built_world
from write_gate import Call, Gate

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, text_at
from nodeattest_sandbox.control_plane import StartControlPlane

ALONE = ("--leader-elect", "false")


@pytest.fixture(scope="module")
def town(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world of its own, without a Node: the rotation stays open in it."""
    with built_world(start_control_plane, tmp_path_factory.mktemp("faulty")) as built:
        yield built


@contextmanager
def gated(town: World, name: str, *, real: bool) -> Generator[tuple[Gate, Controller]]:
    """Let kubeadm make its bindings, and a controller reach the cluster through a gate; it does not run yet."""
    town.set_policy(authorizedAttestors=["insecure"])
    make_bindings(town, real=real)
    with Gate(town.workload) as gate:
        path = gate.kubeconfig(town.workload.admin_kubeconfig, town.directory / f"{name}.kubeconfig")
        town.route_workload(path.read_bytes())
        try:
            yield gate, town.controller(*ALONE, log=f"{name}.log")
        finally:
            town.route_workload(town.workload.admin_kubeconfig.read_bytes())
            forget_bindings(town)


def reason_is(town: World, reason: str, *, says: str = "", seconds: float = 40.0) -> JsonMap:
    def found() -> JsonMap | None:
        seen = condition(town)
        return seen if text_at(seen, "reason") == reason and says in text_at(seen, "message") else None

    return eventually(found, seconds=seconds, what=f"the condition {reason}")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_around_the_deletion_costs_nothing(town: World, moment: str, control_plane_kind: str) -> None:
    with gated(town, f"killed-{moment}", real=control_plane_kind == "real") as (gate, controller):
        killed = threading.Event()

        def decide(call: Call) -> bool:
            if call.method != "DELETE" or killed.is_set():
                return True
            controller.kill()
            killed.set()
            return False

        if moment == "before":
            gate.before = decide
        else:
            gate.after = decide
        with controller:
            assert killed.wait(60)
            assert (BOOTSTRAP in binding_names(town)) is (moment == "before")
            controller.start()
            eventually(lambda: BOOTSTRAP not in binding_names(town), seconds=40, what="the deletion")
            reason_is(town, "ClosedForBootstrap")
            assert ROTATION in binding_names(town)


def test_a_binding_that_somebody_changes_between_look_and_deletion_stays(town: World, control_plane_kind: str) -> None:
    with gated(town, "changed", real=control_plane_kind == "real") as (gate, controller):
        changed = threading.Event()

        def decide(call: Call) -> bool:
            if call.method == "DELETE" and not changed.is_set():
                changed.set()
                api = "rbac.authorization.k8s.io"
                subjects: list[JsonValue] = [
                    {"apiGroup": api, "kind": "Group", "name": name} for name in ("system:bootstrappers", "mine")
                ]
                town.workload_admin.patch(f"{BINDINGS}/{BOOTSTRAP}", {"subjects": subjects})
            return True

        gate.before = decide
        with controller:
            reason_is(town, "ForeignBinding", says=BOOTSTRAP)
            assert changed.is_set()
            assert BOOTSTRAP in binding_names(town)
            assert sum(call.method == "DELETE" for call in gate.calls) == 1


def test_a_list_of_nodes_that_breaks_off_closes_nothing(town: World, control_plane_kind: str) -> None:
    with gated(town, "broken", real=control_plane_kind == "real") as (gate, controller):
        gate.refused = lambda call: 500 if call.path == "/api/v1/nodes" else None
        with controller:
            reason_is(town, "CannotVerify", says="does not answer", seconds=60)
            assert {BOOTSTRAP, ROTATION} <= binding_names(town)
            asked = sum(call.path == "/api/v1/nodes" for call in gate.calls)
            assert asked <= 5  # ever later, and no storm


def test_a_role_of_wildcards_bound_to_everybody_is_seen_through(town: World, control_plane_kind: str) -> None:
    collection = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    rule: JsonMap = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    role: JsonMap = {"kind": "ClusterRole", "metadata": {"name": "tests:everything"}, "rules": [rule]}
    with gated(town, "wild", real=control_plane_kind == "real") as (_gate, controller):
        town.workload_admin.create(collection, {"apiVersion": "rbac.authorization.k8s.io/v1", **role})
        grant(town, "tests:everybody", "tests:everything", "system:authenticated")
        try:
            with controller:
                found = reason_is(town, "ForeignBinding", says="tests:everybody")
                assert "tests:everything: nodeclient and selfnodeclient to bootstrap tokens and nodes" in text_at(
                    found, "message"
                )
                assert BOOTSTRAP not in binding_names(town)
        finally:
            forget_bindings(town, "tests:everybody")
            town.workload_admin.send("DELETE", f"{collection}/tests:everything")
