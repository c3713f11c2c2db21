"""``nodeattest doctor`` on two clusters: green where all is well, and what is broken turns exactly its finding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, cast

import pytest
import rights
from auto_approval_kit import condition, make_cluster_info
from polling import eventually
from world import NAMESPACE, Controller, World, built_world

from nodeattest_cli.main import main
from nodeattest_controller import manifests
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import StartControlPlane
from nodeattest_sandbox.definitions import install_definitions

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


@pytest.mark.usefixtures("controller")
def test_a_healthy_installation_is_green(installed: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert wrong(capsys, installed, code=0) == {}
    shown = ["doctor", "--kubeconfig", str(installed.management.admin_kubeconfig), "-n", NAMESPACE]
    assert main(shown) == 0
    out = capsys.readouterr().out
    assert "cluster-reachable fleet/c1: it does" in out
    assert out.splitlines()[-1].startswith("0 error, 0 unknown, 0 warning, ")
    assert main([*shown, "--cluster", "nowhere"]) == 1
