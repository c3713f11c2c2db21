"""Every kustomization of ours, built by kubectl and shown to a real API server, and what all of them promise."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest
import yaml
from webhook_world import TREE

from nodeattest_controller.main import run
from nodeattest_controller.settings import Settings
from nodeattest_parsing.objects import flag, items, mapping, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, start_real
from tools.release.manifests import build, key

pytestmark = pytest.mark.conformance

ELSEWHERE: Final = frozenset(
    {
        "monitoring.coreos.com/v1/ServiceMonitor",
        "monitoring.coreos.com/v1/PrometheusRule",
        "cert-manager.io/v1/Certificate",
        "cert-manager.io/v1/Issuer",
    }
)
"""Kinds of the Prometheus operator and of cert-manager: no API server has them by itself."""


def kustomizations() -> list[str]:
    """Name every folder of ours that can be applied."""
    return sorted(str(file.parent.relative_to(TREE)) for file in TREE.rglob("kustomization.yaml"))


def kustomized(kubectl: Path, folder: str) -> str:
    """Build a folder."""
    built = subprocess.run([kubectl, "kustomize", TREE / folder], capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"{folder}: {built.stderr}"
    return built.stdout


def documents(text: str) -> list[JsonObject]:
    """Read what was built."""
    return [cast("JsonObject", document) for document in yaml.safe_load_all(text) if document]


@pytest.fixture(scope="module")
def built(assets: Path) -> dict[str, list[JsonObject]]:
    return {folder: documents(kustomized(assets / "kubectl", folder)) for folder in kustomizations()}


@pytest.fixture(scope="module")
def server(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with start_real(tmp_path_factory.mktemp("applied"), assets, name="applied") as plane:
        yield plane


def kind_of(document: JsonObject) -> str:
    return f"{text(document, 'apiVersion')}/{text(document, 'kind')}"


def is_namespace(document: JsonObject) -> bool:
    return document["kind"] == "Namespace"


def collection_of(client: Client, document: JsonObject) -> str | None:
    """Find where objects of a kind are created; None where the server does not know it."""
    version = text(document, "apiVersion")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    try:
        served = cast("JsonObject", client.get(root))
    except ApiRefusal:
        return None
    found = next(
        (one for one in items(served, "resources") if one["kind"] == document["kind"] and "/" not in text(one, "name")),
        None,
    )
    if found is None:
        return None
    namespace = text(document, "metadata", "namespace") if flag(found, "namespaced") else ""
    return f"{root}/namespaces/{namespace}/{text(found, 'name')}" if namespace else f"{root}/{text(found, 'name')}"


def tried(client: Client, path: str, document: JsonObject) -> JsonMap:
    """Create an object in a dry run, or replace the one that Kubernetes itself made under its name."""
    try:
        return client.create(path, cast("JsonMap", document), dryRun="All")
    except ApiRefusal as refusal:
        name = text(document, "metadata", "name")
        if refusal.reason != "AlreadyExists" or not name.startswith("system:"):
            raise
        return client.replace(f"{path}/{name}", cast("JsonMap", document), dryRun="All")


@pytest.mark.parametrize("program", ["kubectl-oldest", "kubectl"])
def test_the_oldest_and_the_newest_kubectl_build_every_kustomization(assets: Path, program: str) -> None:
    for folder in kustomizations():
        assert documents(kustomized(assets / program, folder))


def test_the_api_server_takes_every_object_of_every_kustomization(
    built: dict[str, list[JsonObject]], server: ControlPlane
) -> None:
    """As a dry run, but for namespaces, in which the others are tried."""
    client = server.client()
    unknown: set[str] = set()
    ours = {text(one, "metadata", "name") for made in built.values() for one in made if is_namespace(one)}
    for name in {*ours, "fleet"}:  # overlays/namespaced has a place for a namespace of the reader's
        fleet.create_namespace(client, name)
    for made in built.values():
        for document in made:
            path = collection_of(client, document)
            if path is None:
                unknown.add(kind_of(document))
            elif not is_namespace(document):
                assert tried(client, path, document)["kind"] == document["kind"]
    assert unknown <= ELSEWHERE, f"kinds that nobody knows: {unknown - ELSEWHERE}"


@pytest.mark.parametrize(
    "folder", ["base", "default", "network-policy", "overlays/namespaced", "overlays/pre-rendered", "overlays/single"]
)
def test_a_release_is_made_of_what_kubectl_makes_of_a_kustomization(
    built: dict[str, list[JsonObject]], folder: str
) -> None:
    ours = {key(one): one for one in build(TREE / folder)}
    assert ours == {key(cast("JsonMap", one)): one for one in built[folder]}


def pods(built: dict[str, list[JsonObject]]) -> Iterator[tuple[str, JsonObject]]:
    for folder, made in built.items():
        for document in made:
            if document["kind"] in {"Deployment", "DaemonSet", "StatefulSet", "Job"}:
                yield f"{folder}/{text(document, 'metadata', 'name')}", mapping(document, "spec", "template", "spec")


def test_every_pod_keeps_to_the_restricted_profile(built: dict[str, list[JsonObject]], server: ControlPlane) -> None:
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    for namespace in (one for made in built.values() for one in made if is_namespace(one)):
        assert enforced.items() <= mapping(namespace, "metadata", "labels").items()
    client, seen = server.client(), 0
    client.create("/api/v1/namespaces", {"metadata": {"name": "restricted", "labels": {**enforced}}})
    client.create("/api/v1/namespaces/restricted/serviceaccounts", {"metadata": {"name": "default"}})
    for name, pod in pods(built):
        seen += 1
        body = {"metadata": {"name": "pod"}, "spec": {**pod, "serviceAccountName": "", "priorityClassName": ""}}
        client.create("/api/v1/namespaces/restricted/pods", cast("JsonMap", body), dryRun="All")
        for container in items(pod, "containers"):
            assert flag(container, "securityContext", "readOnlyRootFilesystem"), name
            assert "memory" in mapping(container, "resources", "limits"), name
    assert seen >= len(("default", "configured", "single", "ha", "prometheus", "namespaced", "bare-metal", "front"))


@pytest.mark.parametrize(
    ("folder", "of", "new"),
    [
        ("default", "base", {"--webhook-bind-address=:9443", "--webhook-cert-dir=/etc/nodeattest-webhook"}),
        ("configured", "default", {"--config=/etc/nodeattest/controller.yaml"}),
        ("overlays/ha", "default", set[str]()),
        ("overlays/namespaced", "default", {"--watch-namespace=fleet"}),
        ("overlays/prometheus", "default", set[str]()),
        ("overlays/single", "default", set[str]()),
        ("overlays/bare-metal", "base", {"--inventory=MachineRecords"}),
        ("overlays/pre-rendered", "base", set[str]()),
    ],
)
def test_an_overlay_says_one_thing_besides_and_says_it_right(
    built: dict[str, list[JsonObject]], folder: str, of: str, new: set[str]
) -> None:
    said = {name: words_of(built[name]) for name in (of, folder)}
    assert said[folder] - said[of] == new
    assert said[of] <= said[folder]
    known = {option for parameter in run.params for option in parameter.opts}
    assert {word.partition("=")[0] for word in said[folder] - {"run"}} <= known


def words_of(made: list[JsonObject]) -> set[str]:
    [(_, pod)] = pods({"": made})
    return set(strings(items(pod, "containers")[0], "args"))


def test_the_network_policy_opens_what_the_deployment_listens_on(built: dict[str, list[JsonObject]]) -> None:
    [policy] = built["network-policy"]
    [deployment] = [one for one in built["default"] if one["kind"] == "Deployment"]
    assert mapping(policy, "spec", "podSelector") == mapping(deployment, "spec", "selector")
    assert set(strings(policy, "spec", "policyTypes")) == {"Ingress", "Egress"}
    opened = {
        str(port["port"]): items(rule, "from")
        for rule in items(policy, "spec", "ingress")
        for port in items(rule, "ports")
    }
    [container] = items(deployment, "spec", "template", "spec", "containers")
    listening = {text(port, "name"): str(port["containerPort"]) for port in items(container, "ports")}
    # A node always reaches its own pods (NetworkPolicy's documentation): probes need no rule.
    assert set(listening.values()) - {listening["health"]} == set(opened)
    assert opened[listening["metrics"]] == [{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]
    left = {str(port["port"]) for rule in items(policy, "spec", "egress") for port in items(rule, "ports")}
    assert left == {"53", "443", "6443"}


def test_the_service_monitor_finds_the_service_and_it_the_pods(built: dict[str, list[JsonObject]]) -> None:
    by_kind = {text(one, "kind"): one for one in built["prometheus"]}
    labels = mapping(by_kind["Service"], "metadata", "labels")
    assert mapping(by_kind["ServiceMonitor"], "spec", "selector", "matchLabels").items() <= labels.items()
    [deployment] = [one for one in built["default"] if one["kind"] == "Deployment"]
    assert mapping(by_kind["Service"], "spec", "selector") == mapping(deployment, "spec", "selector", "matchLabels")
    [endpoint] = items(by_kind["ServiceMonitor"], "spec", "endpoints")
    [port] = items(by_kind["Service"], "spec", "ports")
    assert endpoint["port"] == port["name"]
    [container] = items(deployment, "spec", "template", "spec", "containers")
    assert text(port, "targetPort") in {text(one, "name") for one in items(container, "ports")}
    assert Settings(identity="r").metrics_address is not None
