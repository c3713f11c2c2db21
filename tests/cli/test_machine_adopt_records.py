"""``machines adopt`` without Cluster API: the clusters and machines are records, and the commands are the same."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from nodeattest_cli.main import main
from nodeattest_controller import manifests
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_definitions

NAMESPACE = "metal"
GROUP_VERSION = "attestation.cluster.x-k8s.io/v1alpha1"
OWN = f"/apis/{GROUP_VERSION}/namespaces/{NAMESPACE}"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One server as both clusters, with our definitions alone, and one cluster written down: ``cellar``."""
    with start_sandbox(tmp_path_factory.mktemp("records"), name="both") as plane:
        client = plane.client()
        install_definitions(client, cast("list[JsonMap]", manifests.crds()))
        fleet.create_namespace(client, NAMESPACE)
        create(plane, "clusterrecords", "ClusterRecord", "cellar", {})
        create(plane, "nodeattestationpolicies", "NodeAttestationPolicy", "p", {"authorizedAttestors": ["tpm"]})
        kubeconfig = base64.b64encode(plane.admin_kubeconfig.read_bytes()).decode()
        secret: JsonMap = {"apiVersion": "v1", "kind": "Secret", "data": {"value": kubeconfig}}
        path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        client.create(path, {**secret, "metadata": {"name": "cellar-kubeconfig"}})
        for name, provider_id in (("node-1", "metal://rack-1/node-1"), ("node-3", "")):
            node: JsonMap = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            client.create("/api/v1/nodes", {**node, "spec": {"providerID": provider_id} if provider_id else {}})
            spec: JsonMap = {"clusterName": "cellar", "nodeName": name, "providerID": f"metal://rack-1/{name}"}
            create(plane, "machinerecords", "MachineRecord", name, spec)
        yield plane


def create(plane: ControlPlane, resource: str, kind: str, name: str, spec: JsonMap) -> None:
    body: JsonMap = {"apiVersion": GROUP_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    plane.client().create(f"{OWN}/{resource}", body)


def adopt(kubeconfig: Path, *words: str, namespace: str = NAMESPACE) -> int:
    return main(["machines", "adopt", *words, "--kubeconfig", str(kubeconfig), "-n", namespace])


def test_nodes_of_records_are_listed_each_with_what_to_run(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adopt(plane.admin_kubeconfig, "--all", "-o", "json") == 0
    found = {text_at(one, "node"): one for one in maps_at(json.loads(capsys.readouterr().out), "nodes")}
    words = ["kubelet-authenticator", "adopt", "--provider", "tpm", "--provider-id", "metal://rack-1/node-1"]
    assert found["node-1"]["command"] == words
    assert (found["node-3"]["todo"], found["node-3"]["command"]) == ("none", [])
    assert "set its provider ID" in text_at(found["node-3"], "says")


def test_the_machine_of_a_record_is_opened_on_record(plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
    assert adopt(plane.admin_kubeconfig, "node-1", "--open", "--reason", "it was off", "--yes", "-o", "json") == 0
    assert "--replace-kubeconfig" in json.loads(capsys.readouterr().out)["command"]
    [record] = plane.client().list(f"{OWN}/machineattestations")
    [owner] = maps_at(record, "metadata", "ownerReferences")
    assert (text_at(owner, "kind"), text_at(owner, "name")) == ("MachineRecord", "node-1")
    assert [text_at(one, "reason") for one in maps_at(record, "spec", "resets")] == ["it was off"]
