"""A controller that lacks a right says so where operators look, and goes on when it has got it."""

from __future__ import annotations

from typing import cast

from filing_requests import Wanted, file_request
from polling import eventually
from world import NAMESPACE, World

from nodeattest_controller import manifests
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at

USER = "short-of-rights"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def grant(world: World, role: JsonMap) -> None:
    binding: JsonMap = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": text_at(role, "metadata", "name")},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": text_at(role, "metadata", "name"),
        },
        "subjects": [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    world.workload_admin.create(f"{RBAC}/clusterroles", role)
    world.workload_admin.create(f"{RBAC}/clusterrolebindings", binding)


def shipped_role(name: str, *, signs: bool) -> JsonMap:
    """Take the rules about signers out of the shipped role, or everything else."""
    found = [
        one for one in manifests.objects("workload-rbac") if text_at(cast("JsonMap", one), "kind") == "ClusterRole"
    ]
    role = cast("JsonMap", found[0])
    rules = [rule for rule in maps_at(role, "rules") if ("signers" in str(rule.get("resources"))) is signs]
    return {**role, "metadata": {"name": name}, "rules": [*rules]}


def test_a_missing_right_is_told_on_the_machine_and_the_request_goes_on_when_it_comes(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    grant(world, shipped_role("short", signs=False))
    world.route_workload(world.workload.client_kubeconfig(USER).read_bytes())
    try:
        with world.controller("--leader-elect", "false", log="rights.log") as controller:
            eventually(lambda: controller.said("connected"), what="the connection")
            world.machine("unsigned")
            filed = file_request(world, Wanted(node="unsigned"))
            event = eventually(lambda: told(world, "unsigned"), what="the Event")
            assert "403" in text_at(event, "message")
            assert "RBAC manifests" in text_at(event, "message")
            assert not filed.state()
            grant(world, shipped_role("signs", signs=True))
            eventually(lambda: filed.state() == "issued", seconds=60, what="the certificate")
    finally:
        world.route_workload(world.workload.admin_kubeconfig.read_bytes())


def told(world: World, machine: str) -> JsonMap | None:
    events = world.admin.list(f"/api/v1/namespaces/{NAMESPACE}/events")
    mine = [one for one in events if text_at(one, "involvedObject", "name") == machine]
    return next((one for one in mine if text_at(one, "reason") == "APIUnavailable"), None)
