"""The Helm chart, rendered by the real helm: with its defaults the kustomization, with values what an overlay says."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import cast

import pytest
import yaml
from needs import lacks, not_possible

from nodeattest_controller.settings import Settings
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, items_at, map_at
from tools.release.chart import write_chart
from tools.release.manifests import build, key

TREE = Path(__file__).parents[2]
MANIFESTS = TREE / "manifests"
BESIDES = {"Namespace", "CustomResourceDefinition"}
"""Kinds that no template has: helm makes the namespace, and definitions are in ``crds``."""


@pytest.fixture(scope="module")
def helm() -> str:
    installed = TREE / ".venv" / "oracles" / "helm"
    found = str(installed) if installed.exists() else shutil.which("helm")
    if found is None and platform.machine() != "x86_64":
        not_possible("make oracles has helm for x86-64 only")
    if found is None:
        lacks("helm is not installed: make oracles")
    return found


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chart(tmp_path_factory.mktemp("chart"))


def rendered(helm: str, chart: Path, *values: str, crds: bool = False) -> subprocess.CompletedProcess[str]:
    command = [helm, "template", "nodeattest", str(chart), "--namespace", "nodeattest-system"]
    command += [*(f"--set-json={value}" for value in values), *(["--include-crds"] if crds else [])]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def objects(helm: str, chart: Path, *values: str, crds: bool = False) -> dict[tuple[str, str, str], JsonMap]:
    done = rendered(helm, chart, *values, crds=crds)
    assert done.returncode == 0, done.stderr
    made = [cast("JsonMap", one) for one in yaml.safe_load_all(done.stdout) if one]
    assert len({key(one) for one in made}) == len(made)
    return {key(one): one for one in made}


def kustomized(folder: str) -> dict[tuple[str, str, str], JsonMap]:
    return {key(one): one for one in build(MANIFESTS / folder) if one["kind"] not in BESIDES}


def manager(made: dict[tuple[str, str, str], JsonMap]) -> JsonMap:
    [deployment] = [one for one in made.values() if one["kind"] == "Deployment"]
    [container] = items_at(deployment, "spec", "template", "spec", "containers")
    return cast("JsonMap", container)


def test_with_its_defaults_the_chart_is_the_kustomization(helm: str, chart: Path) -> None:
    assert objects(helm, chart) == kustomized("default")


def test_without_the_webhook_the_chart_is_the_base(helm: str, chart: Path) -> None:
    assert objects(helm, chart, "webhook.enabled=false") == kustomized("base")


def test_for_one_namespace_the_chart_is_the_overlay_and_binds_nothing_elsewhere(helm: str, chart: Path) -> None:
    network = kustomized("network-policy")
    expected = {one: held for one, held in kustomized("overlays/namespaced").items() if one not in network}
    assert objects(helm, chart, 'watchNamespace="fleet"') == expected
    without = objects(helm, chart, 'watchNamespace="blue"', "webhook.enabled=false")
    bound = {namespace for kind, namespace, _ in without if kind.endswith("Binding")}
    assert bound == {"blue", "nodeattest-system"}


def test_with_one_replica_the_chart_has_the_disruption_budget_of_its_overlay(helm: str, chart: Path) -> None:
    single = {one: held for one, held in kustomized("overlays/single").items() if one[0] == "PodDisruptionBudget"}
    assert len(single) == 1
    assert objects(helm, chart, "replicas=1").items() >= single.items()


def test_two_controllers_share_no_object_and_each_refers_to_its_own(helm: str, chart: Path) -> None:
    both = objects(helm, chart, "metrics.secure=true")
    blue = objects(helm, chart, "metrics.secure=true", 'watchFilter="blue"')
    assert not both.keys() & blue.keys()
    assert {(kind, namespace, f"{name}-blue") for kind, namespace, name in both} == blue.keys()
    container = manager(blue)
    args = [arg for arg in items_at(container, "args") if arg != "--watch-filter=blue"]
    assert (len(args), container["command"]) == (len(items_at(manager(both), "args")), ["node-attestation-controller"])
    own = {name for _, _, name in both} | {"nodeattest-webhook-tls"}
    for one in blue.values():
        shared = {text for text in texts_in(one) if text in own}
        assert shared <= {"node-attestation-controller"}, key(one)  # the image and its command
        assert one["kind"] == "Deployment" or not shared, key(one)
    settings = Settings(identity="replica", watch_filter="blue")
    [leases] = [
        rule
        for rule in items_at(blue["Role", "nodeattest-system", "nodeattest:controller-blue"], "rules")
        if settings.instance in texts_in(rule)
    ]
    assert items_at(leases, "resources") == ["leases"]
    assert settings.webhook_configuration in texts_in(blue["ClusterRole", "", "nodeattest:webhook-blue"]["rules"])


def texts_in(value: JsonValue) -> set[str]:
    """Return all texts of a document, and the parts of names with a namespace or a domain."""
    if isinstance(value, dict):
        return {text for each in value.values() for text in texts_in(each)}
    if isinstance(value, list):
        return {text for each in value for text in texts_in(each)}
    return {value, *re.split("[/.]", value)} if isinstance(value, str) else set()


def test_secure_metrics_are_a_flag_and_its_rights(helm: str, chart: Path) -> None:
    made = objects(helm, chart, "metrics.secure=true")
    container = manager(made)
    *others, last = items_at(container, "args")
    assert last == "--metrics-secure=true"
    container["args"] = others
    assert made == {**kustomized("default"), **kustomized("metrics-auth")}


def test_the_webhooks_callers_are_restricted_by_flags_and_a_mounted_ca(helm: str, chart: Path) -> None:
    restricted = ['webhook.allowedCIDRs=["10.0.0.0/28","fd00::1"]', 'webhook.clientCA="api-servers"']
    made = objects(helm, chart, *restricted)
    container = manager(made)
    *args, cidrs, client_ca = items_at(container, "args")
    assert (cidrs, client_ca) == (
        "--webhook-allowed-cidrs=10.0.0.0/28,fd00::1",
        "--webhook-client-ca-file=/etc/nodeattest-webhook-client-ca/ca.crt",
    )
    *mounts, mount = items_at(container, "volumeMounts")
    assert mount == {"name": "webhook-client-ca", "mountPath": "/etc/nodeattest-webhook-client-ca", "readOnly": True}
    [pod] = [map_at(one, "spec", "template", "spec") for one in made.values() if one["kind"] == "Deployment"]
    *volumes, volume = items_at(pod, "volumes")
    assert volume == {"name": "webhook-client-ca", "configMap": {"name": "api-servers"}}
    container["args"], container["volumeMounts"], pod["volumes"] = args, mounts, volumes
    assert made == kustomized("default")
    assert objects(helm, chart, "webhook.enabled=false", *restricted) == kustomized("base")


@pytest.mark.parametrize(
    "value",
    [
        "replicas=0",
        'logLevel="loud"',
        'watchNamespace="a b"',
        'watchFilter="Blue"',
        'image.tag="x\\ny: z"',
        'image.digest="sha256:1"',
        'webhook.enabled="yes"',
        'webhook.allowedCIDRs="10.0.0.0/8"',
        'webhook.allowedCIDRs=["a b"]',
        'webhook.clientCA="a b"',
        'metrics.secure="yes"',
        "replica=3",
        'resources.request={"cpu":"1"}',
    ],
)
def test_a_value_that_the_schema_does_not_know_is_refused(helm: str, chart: Path, value: str) -> None:
    done = rendered(helm, chart, value)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_helm_has_nothing_to_object(helm: str, chart: Path) -> None:
    done = subprocess.run([helm, "lint", "--strict", str(chart)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
