"""The webhook behind a real kube-apiserver, with Cluster API's own CRDs in both versions and the manifests' rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from cert_manager import CONFIGURATIONS
from polling import eventually
from webhook_world import NAMESPACE, POLICIES, ClientCertificates, WebhookWorld
from world import Controller

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at, texts_at
from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import start_real

pytestmark = pytest.mark.conformance
DROP_IN = "/etc/systemd/system/kubelet.service.d/90-nodeattest.conf"
TOKEN = "abcdef.0123456789abcdef"


@pytest.fixture(scope="module", params=["v1beta1", "v1beta2"])
def world(
    request: pytest.FixtureRequest, assets: Path, capi_definitions: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebhookWorld]:
    version = cast("str", request.param)
    directory = tmp_path_factory.mktemp(f"webhook-{version}")
    port = free_ports(1)[0]
    clients = ClientCertificates(directory, port) if version == "v1beta2" else None
    flags = clients.apiserver_flags() if clients is not None else ()
    with start_real(directory / "plane", assets, name="management", flags=flags) as plane:
        made = WebhookWorld(plane, directory, version, port, clients=clients)
        made.install(capi_definitions)
        made.policy("enforced", "prod")
        made.policy("audited", "audit", enforcement="Audit")
        for name, env in (("prod", "prod"), ("audited", "audit"), ("other", "dev")):
            made.cluster(name, env)
        yield made


@pytest.fixture(scope="module")
def replica(world: WebhookWorld) -> Iterator[Controller]:
    with world.replica("a") as running:
        world.await_called()
        yield running


def files(spec: JsonMap) -> list[str]:
    return [text_at(file, "path") for file in maps_at(spec, "files")]


def is_rendered(spec: JsonMap) -> bool:
    commands = texts_at(spec, "preKubeadmCommands")
    return DROP_IN in files(spec) and "kubelet-authenticator" in (commands[-1] if commands else "")


def config_spec(stored: JsonMap) -> JsonMap:
    return map_at(stored, "spec", "kubeadmConfigSpec")


@pytest.mark.usefixtures("replica")
def test_new_machines_of_a_cluster_with_a_policy_are_rendered_and_no_others(world: WebhookWorld) -> None:
    configs = world.path("kubeadmconfigs")
    stored = world.client.create(configs, world.config("worker", "prod"))
    assert is_rendered(map_at(stored, "spec"))
    assert texts_at(stored, "spec", "preKubeadmCommands")[0] == "echo mine"
    for name, cluster in (("audit", "audited"), ("dev", "other"), ("nobody", None)):
        mine = world.config(name, cluster)
        assert map_at(world.client.create(configs, mine), "spec") == mine["spec"], name


@pytest.mark.usefixtures("replica")
def test_applying_what_is_in_git_again_changes_nothing(world: WebhookWorld) -> None:
    world.cluster("git", "prod")
    mine = world.control_plane("git-cp")
    map_at(mine, "spec", "kubeadmConfigSpec")["files"] = [{"path": "/mine", "content": "a"}]
    world.kubectl("-n", NAMESPACE, "apply", "-f", "-", body=mine)
    first = world.client.get(world.path("kubeadmcontrolplanes", "git-cp"))
    for words in (["apply"], ["apply", "--server-side", "--force-conflicts", "--field-manager=capi-topology"]):
        world.kubectl("-n", NAMESPACE, *words, "-f", "-", body=mine)
        again = world.client.get(world.path("kubeadmcontrolplanes", "git-cp"))
        assert again["spec"] == first["spec"]
        assert map_at(again, "metadata")["generation"] == map_at(first, "metadata")["generation"]
    assert files(config_spec(first))[0] == "/mine"


def test_while_nobody_answers_bootstrap_configuration_waits_and_nothing_else(
    world: WebhookWorld, replica: Controller
) -> None:
    replica.kill()
    try:
        with pytest.raises(ApiRefusal, match="failed calling webhook"):
            world.client.create(world.path("kubeadmconfigs"), world.config("waiting", "prod"))
        world.cluster("meanwhile", "prod")
        for name, value in (("decided", "disabled"), ("unlabelled", None)):
            world.label(value)
            try:
                eventually(lambda name=name: passes(world, f"passing-{name}"), what="the way out")
            finally:
                world.label("enabled")
            eventually(lambda name=name: not passes(world, f"waiting-{name}"), what="the webhook's return")
    finally:
        replica.start()
        world.await_called()


@pytest.mark.usefixtures("replica")
def test_without_the_namespaces_label_no_policy_comes_to_enforce(world: WebhookWorld) -> None:
    world.label(None)
    remedy = f"kubectl label namespace {NAMESPACE} attestation.cluster.x-k8s.io/bootstrap-config=enabled"
    try:
        eventually(lambda: refuses(world, remedy), what="the first call by the other path")
        world.policy("unlabelled", "nowhere", enforcement="Audit")
        with pytest.raises(ApiRefusal, match=remedy):
            world.client.patch(f"{POLICIES}/unlabelled", {"spec": {"enforcement": "Enforce"}})
        stored = world.client.create(world.path("kubeadmconfigs"), world.config("unlabelled", "prod"))
        assert not is_rendered(map_at(stored, "spec"))
    finally:
        world.label("enabled")
    world.client.delete(f"{POLICIES}/unlabelled")


def refuses(world: WebhookWorld, remedy: str) -> bool:
    try:
        world.policy("probe", "nowhere", dry_run=True)
    except ApiRefusal as refusal:
        return remedy in str(refusal)
    return False


def passes(world: WebhookWorld, name: str) -> bool:
    try:
        world.client.create(world.path("kubeadmconfigs"), world.config(name, "prod"))
    except ApiRefusal:
        return False
    return True


@pytest.mark.usefixtures("replica")
def test_a_renewed_certificate_is_served_without_a_restart(world: WebhookWorld) -> None:
    world.renew_certificate()
    world.await_called()
    assert passes(world, "renewed")


def test_the_controller_may_not_change_what_its_webhooks_are_called_for(world: WebhookWorld) -> None:
    """By such a change its token would see and change any object that any user writes, and become cluster-admin."""
    client = world.plane.client(world.account())
    every: JsonMap = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}
    changes: list[JsonMap] = [
        {"op": "add", "path": "/webhooks/0/rules/-", "value": every},
        {"op": "remove", "path": "/webhooks/0"},
    ]
    for path in CONFIGURATIONS:
        assert client.get(path)
        for change in changes:
            with pytest.raises(ApiRefusal) as refused:
                client.patch(path, [change], "json")
            assert refused.value.code == 403


@pytest.mark.usefixtures("replica")
def test_no_log_shows_a_token_or_a_key(world: WebhookWorld) -> None:
    discovery: JsonMap = {"bootstrapToken": {"token": TOKEN, "apiServerEndpoint": "10.0.0.1:6443"}}
    world.client.create(world.path("kubeadmconfigs"), world.config("joining", "prod"))
    change: JsonMap = {"spec": {"verbosity": 5, "joinConfiguration": {"discovery": discovery}}}
    world.client.patch(world.path("kubeadmconfigs", "joining"), change)
    logs = "".join(file.read_text() for file in world.directory.glob("*.log"))
    assert "bootstrap configuration" in logs
    assert TOKEN.partition(".")[2] not in logs
    assert "PRIVATE KEY" not in logs
