"""The provider for clusterctl: its provider contract, rule by rule, and the real program where it is found.

Source: https://cluster-api.sigs.k8s.io/developer/providers/contracts/clusterctl; cluster-api
cmd/clusterctl/client/repository/components.go (inspectTargetNamespace), metadata.go, api/v1alpha3/metadata_type.go.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import cast

import pytest
import yaml
from needs import not_possible

from nodeattest_providers import __version__
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, items_at, text_at
from tools.release.manifests import COMPONENTS, METADATA, PROVIDER, write_provider

CLUSTER_SCOPED = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "Namespace",
    "ValidatingWebhookConfiguration",
}
"""A reference with its registry, without digest and port; clusterctl takes no other (ImageFromString)."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_provider(folder)
    return folder


@pytest.fixture(scope="module")
def version(repository: Path) -> Path:
    return repository / PROVIDER / f"v{__version__}"


@pytest.fixture(scope="module")
def components(version: Path) -> list[JsonMap]:
    return [cast("JsonMap", one) for one in yaml.safe_load_all((version / COMPONENTS).read_text()) if one]


def test_the_metadata_has_both_contracts_for_this_version_v1beta1_first(version: Path) -> None:
    """clusterctl takes the first entry of a version; before Cluster API 1.11 it takes v1beta1 only."""
    metadata = cast("JsonMap", yaml.safe_load((version / METADATA).read_text()))
    assert (metadata["apiVersion"], metadata["kind"]) == ("clusterctl.cluster.x-k8s.io/v1alpha3", "Metadata")
    series = [cast("JsonMap", one) for one in items_at(metadata, "releaseSeries")]
    major, minor = map(int, __version__.split(".")[:2])
    of_this = [one["contract"] for one in series if (one["major"], one["minor"]) == (major, minor)]
    assert of_this == ["v1beta1", "v1beta2"]


def test_all_objects_are_in_the_one_namespace_and_have_the_providers_label(components: list[JsonMap]) -> None:
    [namespace] = [text_at(one, "metadata", "name") for one in components if one["kind"] == "Namespace"]
    for one in components:
        expected = "" if one["kind"] in CLUSTER_SCOPED else namespace
        assert text_at(one, "metadata", "namespace") == expected
        assert text_at(one, "metadata", "labels", "cluster.x-k8s.io/provider") == PROVIDER


def test_a_manifest_with_a_variable_is_refused(tmp_path: Path) -> None:
    manifests = Path(__file__).parents[2] / "manifests"
    shutil.copytree(manifests, tmp_path / "manifests")
    changed = tmp_path / "manifests/base/namespace.yaml"
    changed.write_text(changed.read_text().replace("restricted", "${PROFILE}"))
    with pytest.raises(SystemExit, match="no variables"):
        write_provider(tmp_path / "out", tmp_path / "manifests")


def test_the_real_clusterctl_reads_the_provider(repository: Path, components: list[JsonMap], tmp_path: Path) -> None:
    assets = Path(os.environ.get("CAPI_ASSETS", "/nonexistent")) / "clusterctl"
    program = str(assets) if assets.exists() else shutil.which("clusterctl")
    if program is None:
        not_possible("no clusterctl in CAPI_ASSETS or PATH")
    file = repository / PROVIDER / f"v{__version__}" / COMPONENTS
    entry = {"name": "nodeattest", "type": "AddonProvider", "url": f"file://{file}"}
    image = {"addon-nodeattest": {"repository": "registry.example/fleet", "tag": "v9"}}
    config = tmp_path / "clusterctl.yaml"
    config.write_text(yaml.safe_dump({"providers": [entry], "images": image}))
    command = [program, "generate", "provider", "--config", str(config), "--addon", f"nodeattest:v{__version__}"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CLUSTERCTL_DISABLE_VERSIONCHECK": "true"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    made = [cast("JsonMap", one) for one in yaml.safe_load_all(done.stdout) if one]
    assert {(one["kind"], text_at(one, "metadata", "name")) for one in made} == {
        (one["kind"], text_at(one, "metadata", "name")) for one in components
    }
    [deployment] = [one for one in made if one["kind"] == "Deployment"]
    [container] = items_at(deployment, "spec", "template", "spec", "containers")
    assert text_at(container, "image") == "registry.example/fleet/node-attestation-controller:v9"
