"""``nodeattest doctor`` on two clusters: green where all is well, and what is broken turns exactly its finding."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final, cast

import pytest
import rights
from auto_approval_kit import BINDINGS, condition, make_cluster_info, nudge
from polling import eventually
from world import NAMESPACE, OWN, Controller, World, built_world

from nodeattest_cli.main import main
from nodeattest_controller import manifests
from nodeattest_controller.controllers.auto_approval.permissions import NODE_CLIENT_ROLE
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import StartControlPlane
from nodeattest_sandbox.definitions import install_definitions

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def installed(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two clusters of their own: other tests break theirs."""
    with built_world(start_control_plane, tmp_path_factory.mktemp("doctor"), name="doctor-") as built:
        rights.apply(built.admin, ["rbac"], "nobody-else")
        for one in cast("list[JsonMap]", manifests.crds()):  # the sandbox's installer leaves their rules out
            versions: list[JsonValue] = [*maps_at(one, "spec", "versions")]
            built.admin.patch(f"{DEFINITIONS}/{text_at(one, 'metadata', 'name')}", {"spec": {"versions": versions}})
        _deploy(built)
        make_cluster_info(built)
        built.set_policy(authorizedAttestors=["tpm"])
        yield built


def _deploy(world: World) -> None:
    """Create the shipped Deployment, whose pods nobody starts; the sandbox knows none, so that it gets their kind."""
    path = "/apis/apps/v1/namespaces/nodeattest-system/deployments"
    names: JsonMap = {
        "plural": "deployments",
        "singular": "deployment",
        "kind": "Deployment",
        "listKind": "Deployments",
    }
    schema: JsonMap = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version: JsonMap = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec: JsonMap = {"group": "apps", "scope": "Namespaced", "names": names, "versions": [version]}
    head: JsonMap = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    try:
        world.admin.list(path)
    except ApiRefusal:
        install_definitions(world.admin, [{**head, "metadata": {"name": "deployments.apps"}, "spec": spec}])
    [shipped] = [one for one in cast("list[JsonMap]", manifests.objects("manager")) if one["kind"] == "Deployment"]
    world.admin.create(path, shipped)


@pytest.fixture(scope="module")
def controller(installed: World) -> Iterator[Controller]:
    with installed.controller() as running:
        installed.await_service(running)
        installed.await_policy()
        eventually(lambda: condition(installed).get("status") == "True", seconds=90, what="automatic approval closed")
        yield running


def wrong(capsys: pytest.CaptureFixture[str], world: World, *words: str, user: str = "", code: int) -> dict[str, str]:
    """Return the findings that are not ok, by id, with what was found."""
    kubeconfig = world.management.client_kubeconfig(user) if user else world.management.admin_kubeconfig
    capsys.readouterr()
    ended = main(["doctor", "--kubeconfig", str(kubeconfig), "-n", NAMESPACE, "-o", "json", *words])
    out, err = capsys.readouterr()
    document = cast("JsonMap", json.loads(out)) if out else {}
    found = {
        text_at(one, "id"): text_at(one, "found")
        for one in maps_at(document, "findings")
        if text_at(one, "severity") != "ok"
    }
    if found.get("management-version", "").startswith("v1.31."):  # too old for Cluster API, which these tests need not
        del found["management-version"]
    assert ended == code, (found, err)
    return found


@contextmanager
def role_without(world: World, resource: str) -> Generator[None]:
    """Take the controller's rules about a resource away."""
    path = f"{RBAC}/clusterroles/nodeattest:controller"
    rules: list[JsonValue] = [*maps_at(world.admin.get(path), "rules")]
    kept: list[JsonValue] = [rule for rule in rules if resource not in str(rule)]
    world.admin.patch(path, {"rules": kept})
    try:
        yield
    finally:
        world.admin.patch(path, {"rules": rules})


@pytest.mark.usefixtures("controller")
def test_a_healthy_installation_is_green(installed: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert wrong(capsys, installed, code=0) == {}
    shown = ["doctor", "--kubeconfig", str(installed.management.admin_kubeconfig), "-n", NAMESPACE]
    assert main(shown) == 0
    out = capsys.readouterr().out
    assert "cluster-reachable fleet/c1: it does" in out
    assert out.splitlines()[-1].endswith("0 failed, 0 could not be looked at")
    assert main([*shown, "--cluster", "nowhere"]) == 1


def _ready(world: World) -> bool:
    conditions = maps_at(world.admin.get(f"{OWN}/nodeattestationpolicies/policy"), "status", "conditions")
    return any(text_at(one, "type") == "Ready" and text_at(one, "status") == "True" for one in conditions)


@pytest.mark.usefixtures("controller")
def test_an_operator_without_rights_is_told_which_and_no_secret_is_read(
    installed: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world = installed
    shipped = cast("list[JsonMap]", manifests.objects("rbac"))
    by_name = {text_at(one, "metadata", "name"): one for one in shipped if "Binding" not in text_at(one, "kind")}
    _bind(world, "dora", by_name["nodeattest:operator"], by_name["nodeattest:doctor"])
    found = wrong(capsys, world, user="dora", code=3)
    assert set(found) == {"cluster-reachable", "automatic-approval"}
    assert "-kubeconfig" in found["cluster-reachable"]
    own = ["--workload-kubeconfig", str(world.workload.admin_kubeconfig)]
    assert set(wrong(capsys, world, *own, user="dora", code=3)) == {"workload-rights"}
    asked = [one for one in world.management.requests() if one.user == "dora" and one.resource == "secrets"]
    assert {one.name for one in asked} == {"c1-kubeconfig"}
    nobody = wrong(capsys, world, user="nora", code=3)
    assert {"controller-leader", "management-rights", "policies-valid", "machines-attested"} <= set(nobody)


def _bind(world: World, user: str, cluster_role: JsonMap, role: JsonMap) -> None:
    """Give a user both roles, under names of their own."""
    api = "rbac.authorization.k8s.io"
    subject: JsonMap = {"apiGroup": api, "kind": "User", "name": user}
    for one, kind, scope in ((cluster_role, "ClusterRole", ""), (role, "Role", "/namespaces/nodeattest-system")):
        metadata: JsonMap = {"name": user, **({"namespace": "nodeattest-system"} if scope else {})}
        world.admin.create(f"{RBAC}{scope}/{kind.lower()}s", {**one, "metadata": metadata})
        body: JsonMap = {
            "apiVersion": f"{api}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": kind, "name": user},
            "subjects": [subject],
        }
        world.admin.create(f"{RBAC}{scope}/{kind.lower()}bindings", body)


@pytest.mark.usefixtures("controller")
def test_each_thing_that_is_broken_turns_its_finding(installed: World, capsys: pytest.CaptureFixture[str]) -> None:
    world = installed
    with role_without(world, "events"):
        found = wrong(capsys, world, code=1)
        assert found == {"management-rights": "may not: create events"}
    policy = f"{OWN}/nodeattestationpolicies"
    body: JsonMap = {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": "stray", "namespace": NAMESPACE},
        "spec": {"authorizedAttestors": ["tpm"]},
    }
    world.admin.create(policy, body)
    try:
        eventually(lambda: map_at(world.admin.get(f"{policy}/stray"), "status"), what="the report on the other policy")
        world.await_policy()
        assert set(wrong(capsys, world, code=1)) == {"policies-overlap"}
    finally:
        world.admin.delete(f"{policy}/stray")
        eventually(lambda: _ready(world), what="the first policy alone")
        nudge(world)
        eventually(lambda: condition(world).get("status") == "True", seconds=90, what="automatic approval verified")
    api = "rbac.authorization.k8s.io"
    made: JsonMap = {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "made-again"},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": NODE_CLIENT_ROLE},
        "subjects": [{"apiGroup": api, "kind": "Group", "name": "system:bootstrappers"}],
    }
    world.workload_admin.create(BINDINGS, made)
    try:
        found = wrong(capsys, world, code=1)
        assert set(found) == {"automatic-approval"}
        assert "made-again" in found["automatic-approval"]
    finally:
        world.workload_admin.delete(f"{BINDINGS}/made-again")
        nudge(world)
        eventually(lambda: condition(world).get("status") == "True", seconds=90, what="automatic approval closed again")
    world.machine("doctor-unrendered")
    assert set(wrong(capsys, world, code=1)) == {"bootstrap-data"}
