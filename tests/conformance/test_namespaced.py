"""manifests/overlays/namespaced on a real API server: one namespace is served, with no right in any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest
import yaml
from polling import eventually
from webhook_world import NAMESPACE, TREE, WebhookWorld

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import start_real

pytestmark = pytest.mark.conformance
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
FOLDER: Final = TREE / "overlays" / "namespaced"
POLICY: Final = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/nodeattestationpolicies/enforced"


@pytest.fixture(scope="module")
def world(assets: Path, capi_definitions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebhookWorld]:
    directory = tmp_path_factory.mktemp("namespaced")
    with start_real(directory / "plane", assets, name="management") as plane:
        made = WebhookWorld(plane, directory, "v1beta2", free_ports(1)[0])
        made.install(capi_definitions)
        for file in FOLDER.glob("unbind-*.yaml"):
            [one] = written(file.name)
            plane.client().delete(f"{RBAC}/clusterrolebindings/{text_at(one, 'metadata', 'name')}")
        for one in written("bindings.yaml"):
            plane.client().create(f"{RBAC}/namespaces/{NAMESPACE}/rolebindings", one)
        made.policy("enforced", "prod")
        made.cluster("prod", "prod")
        yield made


def written(file: str) -> list[JsonMap]:
    """Read a file of the overlay with our namespace in it, as its user would write it."""
    content = (FOLDER / file).read_text().replace("fleet", NAMESPACE)
    return cast("list[JsonMap]", list(yaml.safe_load_all(content)))


def test_one_namespace_is_served_with_no_right_in_any_other(world: WebhookWorld) -> None:
    [operations] = cast("list[list[JsonMap]]", written("flags.yaml"))
    with world.replica("one", more=[text_at(one, "value") for one in operations]) as running:
        world.await_called()

        def ready() -> str | None:
            conditions = maps_at(world.client.get(POLICY), "status", "conditions")
            return next((text_at(one, "reason") for one in conditions if one["type"] == "Ready"), None)

        assert eventually(ready, seconds=60, what="the policy's status") == "Valid"
        stored = world.client.create(world.path("kubeadmconfigs"), world.config("worker", "prod"))
        assert "kubelet-authenticator" in str(map_at(stored, "spec")["preKubeadmCommands"])
        refused = [one for one in running.events() if "forbidden" in str(one).lower()]
        assert refused == []


def test_its_account_reads_secrets_of_that_namespace_only(world: WebhookWorld) -> None:
    client = world.plane.client(world.account())
    client.list(f"/api/v1/namespaces/{NAMESPACE}/secrets")
    for path in ("/api/v1/secrets", "/api/v1/namespaces/kube-system/secrets"):
        with pytest.raises(ApiRefusal) as refusal:
            client.list(path)
        assert refusal.value.code == 403
