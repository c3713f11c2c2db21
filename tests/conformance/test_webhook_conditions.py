"""The shipped ``matchConditions`` in a real kube-apiserver: for which updates it calls the webhook, which is absent.

Every object is valid or not only after the call, so an update that calls is refused as such, whatever it contains.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final, cast

import pytest
from polling import eventually
from webhook_world import CONFIGURATION, NAMESPACE, WebhookWorld

from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import MARK
from nodeattest_controller.model.webhook_configuration import LABEL, shipped_configuration
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at
from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import start_real
from nodeattest_sandbox.definitions import install_definitions

pytestmark = pytest.mark.conformance
RENDERED: Final = ("echo mine", f"kubelet-authenticator join || exit 1 {MARK}")
TOKEN: Final = "abcdef.0123456789abcdef"
DISCOVERY: Final[JsonMap] = {"bootstrapToken": {"token": TOKEN, "apiServerEndpoint": "10.0.0.1:6443"}}
CREATED: Final = ("rendered", "named", "plain", "of-control-plane")


@pytest.fixture(scope="module", params=["v1beta1", "v1beta2"])
def world(
    request: pytest.FixtureRequest, assets: Path, capi_definitions: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebhookWorld]:
    directory = tmp_path_factory.mktemp("conditions")
    [port] = free_ports(1)
    with start_real(directory / "plane", assets, name="management") as plane:
        made = WebhookWorld(plane, directory, cast("str", request.param), port)
        client = plane.client()
        install_definitions(client, list(made.in_version(capi_definitions)))
        client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for name in CREATED:
            client.create(made.path("kubeadmconfigs"), config(made, name))
        for name, commands in (("rendered", [*RENDERED]), ("plain", ["echo mine"])):
            plane_object = made.control_plane(name)
            map_at(plane_object, "spec", "kubeadmConfigSpec")["preKubeadmCommands"] = [*commands]
            client.create(made.path("kubeadmcontrolplanes"), plane_object)
        configuration = cast("JsonMap", shipped_configuration())
        [webhook] = maps_at(configuration, "webhooks")
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/mutate-bootstrap-config"}
        client.create(CONFIGURATION.rpartition("/")[0], configuration)
        client.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": {LABEL: "enabled"}}})
        eventually(lambda: calls(made, "plain", {}), seconds=60, what="API servers that call the webhook")
        yield made


def config(world: WebhookWorld, name: str) -> JsonMap:
    made = world.config(name, "prod")
    spec = map_at(made, "spec")
    spec["preKubeadmCommands"] = ["echo mine"] if name == "plain" else [*RENDERED]
    if name == "named":
        map_at(spec, "joinConfiguration")["discovery"] = DISCOVERY
    if name == "of-control-plane":
        map_at(made, "metadata", "labels")["cluster.x-k8s.io/control-plane"] = ""
    return made


def calls(world: WebhookWorld, name: str, change: JsonMap, kind: str = "kubeadmconfigs") -> bool:
    """Tell whether a merge patch on trial calls the webhook; ``name`` is empty for a creation."""
    try:
        if name:
            world.client.patch(world.path(kind, name), change, dryRun="All")
        else:
            world.client.create(world.path(kind), change, dryRun="All")
    except ApiRefusal as refusal:
        if "failed calling webhook" in str(refusal):
            return True
        if refusal.code != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
    return False


def in_join(**change: JsonValue) -> JsonMap:
    return {"spec": {"joinConfiguration": {**change}}}


def test_a_creation_calls(world: WebhookWorld) -> None:
    for name in CREATED:
        assert calls(world, "", {**config(world, name), "metadata": {"name": f"new-{name}"}}), name
    assert calls(world, "", world.control_plane("new"), "kubeadmcontrolplanes")


def test_a_change_of_the_spec_calls_and_one_of_discovery_does_not(world: WebhookWorld) -> None:
    changes: tuple[JsonMap, ...] = (
        {"spec": {"format": "ignition"}},
        {"spec": {"files": [{"path": "/a", "content": "a"}]}},
        {"spec": {"preKubeadmCommands": []}},
        {"spec": {"preKubeadmCommands": None}},
        {"spec": {"preKubeadmCommands": [*RENDERED, "echo more"]}},
        {"spec": {"joinConfiguration": None}},
        in_join(nodeRegistration=None),
        in_join(nodeRegistration={"name": "a"}),
        in_join(nodeRegistration={"name": "a"}, discovery=DISCOVERY),
        in_join(controlPlane={}),
    )
    for name in ("rendered", "named"):
        for change in changes:
            assert calls(world, name, change), (name, change)
        discoveries: tuple[JsonMap, ...] = (DISCOVERY, {"bootstrapToken": None}, {"tlsBootstrapToken": TOKEN})
        for discovery in discoveries:
            assert not calls(world, name, in_join(discovery=discovery)), (name, discovery)
    assert not calls(world, "named", in_join(discovery=None))
    for name in ("rendered", "plain"):
        path = world.path("kubeadmconfigs", name)
        written = world.client.patch(path, in_join(discovery=DISCOVERY), dryRun="All")
        assert text_at(written, "spec", "joinConfiguration", "discovery", "bootstrapToken", "token") == TOKEN
    planes: tuple[JsonMap, ...] = ({"replicas": 1}, {"kubeadmConfigSpec": {"format": "ignition"}})
    for change in planes:
        assert calls(world, "rendered", {"spec": change}, "kubeadmcontrolplanes"), change


def test_metadata_and_status_call_only_where_something_is_not_rendered(world: WebhookWorld) -> None:
    owner: JsonMap = {"apiVersion": "cluster.x-k8s.io/v1beta2", "name": "a", "uid": "a"}
    changes: tuple[JsonMap, ...] = ({}, {"labels": None}, {"ownerReferences": [{**owner, "kind": "MachinePool"}]})
    for change in changes:
        for kind in ("kubeadmconfigs", "kubeadmcontrolplanes"):
            assert not calls(world, "rendered", {"metadata": change}, kind), change
            assert calls(world, "plain", {"metadata": change}, kind), change
    status: JsonMap = {"status": {"dataSecretName": "a"}}
    for name in CREATED:
        written = world.client.patch(f"{world.path('kubeadmconfigs', name)}/status", status, dryRun="All")
        assert text_at(written, "status", "dataSecretName") == "a"


def test_what_a_control_plane_made_calls_only_if_it_ceases_to_be_so(world: WebhookWorld) -> None:
    assert not calls(world, "of-control-plane", in_join(discovery=DISCOVERY, controlPlane={}))
    assert not calls(world, "of-control-plane", {"spec": {"format": "ignition"}})
    no_label: JsonMap = {"metadata": {"labels": {"cluster.x-k8s.io/control-plane": None}}}
    assert calls(world, "of-control-plane", {**no_label, "spec": {"format": "ignition"}})


def test_an_object_that_is_being_deleted_calls_for_nothing(world: WebhookWorld) -> None:
    for kind in ("kubeadmconfigs", "kubeadmcontrolplanes"):
        path = world.path(kind, "rendered")
        world.client.patch(path, {"metadata": {"finalizers": ["a.b/c"]}})
        world.client.delete(path)
        assert not calls(world, "rendered", {"spec": {"format": "ignition", "version": "v1.34.1"}}, kind)
        world.client.patch(path, {"metadata": {"finalizers": None}})
