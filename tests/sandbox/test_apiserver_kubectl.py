"""A real kubectl on the sandbox and on the real server."""

from __future__ import annotations

import subprocess

import pytest
from apiserver_kit import CSRS, csr_object
from needs import lacks

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, dump, load, map_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane


class Kubectl:
    def __init__(self, plane: ControlPlane) -> None:
        assert plane.kubectl is not None
        cache = plane.directory / "kubectl-cache"
        self._command = [str(plane.kubectl), f"--kubeconfig={plane.admin_kubeconfig}", f"--cache-dir={cache}"]

    def __call__(self, *arguments: str, given: str = "") -> str:
        command = [*self._command, *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    if control_plane.kubectl is None:
        lacks("there is no kubectl, neither in KUBEBUILDER_ASSETS nor on the path")
    return Kubectl(control_plane)


def test_kubectl_knows_resources_by_short_name(kubectl: Kubectl) -> None:
    assert "kube-system" in kubectl("get", "ns")
    names = set(kubectl("api-resources", "-o", "name").split())
    assert {"secrets", "nodes", "certificatesigningrequests.certificates.k8s.io"} <= names


def test_kubectl_creates_applies_labels_and_deletes(kubectl: Kubectl, namespace: str) -> None:
    here = f"--namespace={namespace}"
    assert kubectl("create", "secret", "generic", "s", "--from-literal=a=b", here) == "secret/s created\n"
    manifest: JsonMap = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": {"x": "1", "y": "1"},
    }
    assert kubectl("apply", "-f", "-", here, given=dump(manifest).decode()) == "configmap/c created\n"
    manifest["data"] = {"x": "2"}
    assert kubectl("apply", "-f", "-", here, given=dump(manifest).decode()) == "configmap/c configured\n"
    kubectl("label", "configmap", "c", "a=b", here)
    kubectl("annotate", "configmap", "c", "a=b", here)
    stored = load(kubectl("get", "cm", "c", "-o", "json", here))
    assert map_at(stored, "data") == {"x": "2"}
    assert text_at(stored, "metadata", "labels", "a") == text_at(stored, "metadata", "annotations", "a") == "b"
    assert kubectl("delete", "cm", "c", here).startswith('configmap "c" deleted')  # newer ones name the namespace


def test_kubectl_prints_tables(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "secret", "generic", "s", f"--namespace={namespace}")
    lines = kubectl("get", "secrets", "--field-selector=type=Opaque", f"--namespace={namespace}").splitlines()
    assert lines[0].split()[:2] == ["NAME", "TYPE"]
    assert lines[1].split()[:2] == ["s", "Opaque"]


def test_kubectl_approves_a_request(kubectl: Kubectl, admin: Client, unique: str) -> None:
    admin.create(CSRS, csr_object(unique))
    kubectl("certificate", "approve", unique)
    assert "Approved" in kubectl("get", "csr", unique)
    assert "Approved" in kubectl("describe", "csr", unique)


def test_kubectl_asks_for_permissions(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "csr") == "yes\n"


def test_kubectl_waits_for_a_condition(kubectl: Kubectl, admin: Client, unique: str) -> None:
    admin.create("/api/v1/nodes", {"metadata": {"name": unique}})
    ready: JsonMap = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    admin.patch(f"/api/v1/nodes/{unique}/status", ready)
    assert "condition met" in kubectl("wait", f"node/{unique}", "--for=condition=Ready", "--timeout=10s")


def test_kubectl_works_with_custom_resources(kubectl: Kubectl, unique: str) -> None:
    definition: JsonMap = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "toys.toys.example"},
        "spec": {
            "group": "toys.example",
            "scope": "Namespaced",
            "names": {"plural": "toys", "kind": "Toy", "shortNames": ["ty"]},
            "versions": [
                {
                    "name": "v1", "served": True, "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    "additionalPrinterColumns": [{"name": "Shape", "type": "string", "jsonPath": ".spec.shape"}],
                }
            ],
        },
    }  # fmt: skip
    kubectl("apply", "-f", "-", given=dump(definition).decode())
    kubectl("wait", "crd/toys.toys.example", "--for=condition=Established", "--timeout=20s")
    for shape in ("round", "square"):
        toy: JsonMap = {
            "apiVersion": "toys.example/v1",
            "kind": "Toy",
            "metadata": {"name": unique},
            "spec": {"shape": shape},
        }
        kubectl("apply", "-f", "-", given=dump(toy).decode())
    assert [line.split()[:2] for line in kubectl("get", "ty").splitlines()] == [["NAME", "SHAPE"], [unique, "square"]]
    kubectl("delete", "crd", "toys.toys.example")
