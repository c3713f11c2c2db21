"""The shipped ``matchConditions`` in a real kube-apiserver: for which updates it calls the webhook, which is absent.

Every object is valid or not only after the call, so an update that calls is refused as such, whatever it contains.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final, cast

import pytest
import yaml
from polling import eventually
from webhook_world import CONFIGURATION, NAMESPACE, WebhookWorld

from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.payload import MARK
from nodeattest_controller.model.webhook_configuration import LABEL, shipped_configuration
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import free_ports, start_real
from nodeattest_sandbox.definitions import install_definitions

pytestmark = pytest.mark.conformance
RENDERED: Final = ("echo mine", f"kubelet-authenticator join || exit 1 {MARK}")
TOKEN: Final = "abcdef.0123456789abcdef"
DISCOVERY: Final[JsonMap] = {"bootstrapToken": {"token": TOKEN, "apiServerEndpoint": "10.0.0.1:6443"}}
BOOTSTRAP: Final = "bootstrap.cluster.x-k8s.io_kubeadmconfigs.yaml"
CREATED: Final = ("rendered", "named", "plain", "whole", "of-control-plane")


def sample(schema: JsonMap) -> JsonValue:
    """Return a small value of a schema: of an object its needed fields, or else its first one."""
    match text_at(schema, "type"):
        case "object":
            properties = map_at(schema, "properties")
            needed = cast("list[str]", schema.get("required", [])) or list(properties)[:1]
            return {name: sample(map_at(properties, name)) for name in needed} or {"a": "b"}
        case "array":
            return [sample(map_at(schema, "items"))]
        case "integer":
            return 1
        case "boolean":
            return True
        case _:
            choices = cast("list[JsonValue]", schema.get("enum", []))
            return choices[0] if choices else "/a"


def another(value: JsonValue) -> JsonValue:
    """Return a different value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return "ignition" if value == "cloud-config" else f"{value}/b"
        case list():
            return [*value, *value]
        case dict():
            [(name, first), *_] = value.items()
            return {name: another(first)}
        case _:
            raise AssertionError(value)


@pytest.fixture(scope="module", params=["v1beta1", "v1beta2"])
def version(request: pytest.FixtureRequest) -> str:
    return cast("str", request.param)


@pytest.fixture(scope="module")
def fields(version: str, capi_definitions: Path) -> JsonMap:
    """The schema of a KubeadmConfig's spec."""
    definition = cast("JsonMap", yaml.safe_load((capi_definitions / BOOTSTRAP).read_text()))
    [found] = [one for one in maps_at(definition, "spec", "versions") if one["name"] == version]
    return map_at(found, "schema", "openAPIV3Schema", "properties", "spec", "properties")


@pytest.fixture(scope="module")
def whole(fields: JsonMap) -> JsonMap:
    """A rendered spec in which every field is set, also every one of joinConfiguration."""
    spec: JsonMap = {name: sample(map_at(fields, name)) for name in fields}
    join = map_at(fields, "joinConfiguration", "properties")
    spec["joinConfiguration"] = {**{name: sample(map_at(join, name)) for name in join}, "discovery": DISCOVERY}
    return {**spec, "preKubeadmCommands": [*RENDERED]}


@pytest.fixture(scope="module")
def world(
    version: str, assets: Path, capi_definitions: Path, whole: JsonMap, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebhookWorld]:
    directory = tmp_path_factory.mktemp("conditions")
    [port] = free_ports(1)
    with start_real(directory / "plane", assets, name="management") as plane:
        made = WebhookWorld(plane, directory, version, port)
        client = plane.client()
        install_definitions(client, list(made.in_version(capi_definitions)))
        namespace = f"/api/v1/namespaces/{NAMESPACE}"
        client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for name in CREATED:
            client.create(made.path("kubeadmconfigs"), config(made, name, whole))
        for name, commands in (("rendered", [*RENDERED]), ("plain", ["echo mine"])):
            plane_object = made.control_plane(name)
            map_at(plane_object, "spec", "kubeadmConfigSpec")["preKubeadmCommands"] = [*commands]
            client.create(made.path("kubeadmcontrolplanes"), plane_object)
        configuration = cast("JsonMap", shipped_configuration())
        [webhook] = maps_at(configuration, "webhooks")
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/mutate-bootstrap-config"}
        client.create(CONFIGURATION.rpartition("/")[0], configuration)
        client.patch(namespace, {"metadata": {"labels": {LABEL: "enabled"}}})
        eventually(lambda: calls(made, "plain", {}), seconds=60, what="API servers that call the webhook")
        yield made


def config(world: WebhookWorld, name: str, whole: JsonMap) -> JsonMap:
    made = world.config(name, "prod")
    spec = map_at(made, "spec")
    spec["preKubeadmCommands"] = ["echo mine"] if name == "plain" else [*RENDERED]
    if name == "named":
        map_at(spec, "joinConfiguration")["discovery"] = DISCOVERY
    if name == "of-control-plane":
        map_at(made, "metadata", "labels")["cluster.x-k8s.io/control-plane"] = ""
    if name == "whole":
        made["spec"] = whole
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


def test_a_creation_calls(world: WebhookWorld, whole: JsonMap) -> None:
    for name in CREATED:
        assert calls(world, "", {**config(world, name, whole), "metadata": {"name": f"new-{name}"}}), name
    assert calls(world, "", world.control_plane("new"), "kubeadmcontrolplanes")


def test_every_field_of_the_spec_that_is_added_changed_or_removed_calls(
    world: WebhookWorld, fields: JsonMap, whole: JsonMap
) -> None:
    for name in fields.keys() - {"joinConfiguration", "preKubeadmCommands"}:
        assert calls(world, "whole", {"spec": {name: None}}), name
        assert calls(world, "whole", {"spec": {name: another(whole[name])}}), name
        for before in ("rendered", "named"):
            assert calls(world, before, {"spec": {name: whole[name]}}), name
    for before in ("rendered", "named", "whole"):
        changes: tuple[JsonValue, ...] = ([], None, [*RENDERED, "echo more"])
        for commands in changes:
            assert calls(world, before, {"spec": {"preKubeadmCommands": commands}}), commands
        assert calls(world, before, {"spec": {"joinConfiguration": None}})


def test_every_field_of_join_configuration_but_discovery_calls(
    world: WebhookWorld, fields: JsonMap, whole: JsonMap
) -> None:
    join = map_at(whole, "joinConfiguration")
    for name in map_at(fields, "joinConfiguration", "properties").keys() - {"discovery"}:
        assert calls(world, "whole", in_join(**{name: None})), name
        assert calls(world, "whole", in_join(**{name: another(join[name])})), name
        for before in ("rendered", "named"):
            added = another(join[name]) if name == "nodeRegistration" else join[name]
            assert calls(world, before, in_join(**{name: added})), name
            assert calls(world, before, in_join(**{name: added, "discovery": DISCOVERY})), name


def test_no_change_of_discovery_calls(world: WebhookWorld, fields: JsonMap) -> None:
    discovery = map_at(fields, "joinConfiguration", "properties", "discovery", "properties")
    for name in discovery:
        value = DISCOVERY.get(name) or sample(map_at(discovery, name))
        for before in ("rendered", "named", "whole"):
            for change in (value, another(value), None):
                assert not calls(world, before, in_join(discovery={name: change})), (name, change)
    for before in ("named", "whole"):
        assert not calls(world, before, in_join(discovery=None))
    for name in ("rendered", "plain"):
        path = world.path("kubeadmconfigs", name)
        written = world.client.patch(path, in_join(discovery=DISCOVERY), dryRun="All")
        assert text_at(written, "spec", "joinConfiguration", "discovery", "bootstrapToken", "token") == TOKEN


def test_metadata_and_status_call_only_where_something_is_not_rendered_or_becomes_a_pools(world: WebhookWorld) -> None:
    owner: JsonMap = {"apiVersion": "cluster.x-k8s.io/v1beta2", "name": "a", "uid": "a"}
    changes: tuple[JsonMap, ...] = (
        {},
        {"labels": {"a": "b"}},
        {"labels": None},
        {"annotations": {"a": "b"}},
        {"finalizers": ["a.b/c"]},
        {"ownerReferences": [{**owner, "kind": "Machine"}]},
    )
    for change in changes:
        for kind in ("kubeadmconfigs", "kubeadmcontrolplanes"):
            assert not calls(world, "rendered", {"metadata": change}, kind), change
            assert calls(world, "plain", {"metadata": change}, kind), change
    assert calls(world, "rendered", {"metadata": {"ownerReferences": [{**owner, "kind": "MachinePool"}]}})
    status: JsonMap = {"status": {"dataSecretName": "a"}}
    for name in CREATED:
        written = world.client.patch(f"{world.path('kubeadmconfigs', name)}/status", status, dryRun="All")
        assert text_at(written, "status", "dataSecretName") == "a"


def test_what_a_control_plane_made_calls_only_if_it_ceases_to_be_so(world: WebhookWorld) -> None:
    assert not calls(world, "of-control-plane", in_join(discovery=DISCOVERY, controlPlane={}))
    assert not calls(world, "of-control-plane", {"spec": {"format": "ignition"}})
    no_label: JsonMap = {"metadata": {"labels": {"cluster.x-k8s.io/control-plane": None}}}
    assert calls(world, "of-control-plane", {**no_label, "spec": {"format": "ignition"}})


def test_each_change_of_a_control_planes_spec_calls(world: WebhookWorld) -> None:
    changes: tuple[JsonMap, ...] = (
        {"replicas": 1},
        {"version": "v1.34.1"},
        {"kubeadmConfigSpec": {"format": "ignition"}},
        {"kubeadmConfigSpec": {"preKubeadmCommands": None}},
        {"kubeadmConfigSpec": {"joinConfiguration": None}},
    )
    for change in changes:
        assert calls(world, "rendered", {"spec": change}, "kubeadmcontrolplanes"), change


def test_an_object_that_is_being_deleted_calls_for_nothing(world: WebhookWorld) -> None:
    for kind in ("kubeadmconfigs", "kubeadmcontrolplanes"):
        path = world.path(kind, "rendered")
        world.client.patch(path, {"metadata": {"finalizers": ["a.b/c"]}})
        world.client.delete(path)
        assert not calls(world, "rendered", {"spec": {"format": "ignition", "version": "v1.34.1"}}, kind)
        world.client.patch(path, {"metadata": {"finalizers": None}})
