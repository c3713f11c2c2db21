"""The webhook behind a real kube-apiserver, with Cluster API's own CRDs in both versions and the manifests' rights."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from cert_manager import CONFIGURATIONS
from polling import eventually
from webhook_world import CONFIGURATION, NAMESPACE, POLICIES, ClientCertificates, WebhookWorld
from world import Controller

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at, texts_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import free_ports, start_real

pytestmark = pytest.mark.conformance
DROP_IN = "/etc/systemd/system/kubelet.service.d/90-nodeattest.conf"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
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
def test_audit_says_what_it_leaves_undone(world: WebhookWorld) -> None:
    warned = world.kubectl("-n", NAMESPACE, "create", "-f", "-", body=world.config("told", "audited"))
    assert "Warning: its cluster's policy is Audit" in warned


@pytest.mark.usefixtures("replica")
def test_what_the_bootstrap_provider_writes_passes_and_costs_no_read(world: WebhookWorld) -> None:
    path = world.path("kubeadmconfigs", "joining")
    stored = world.client.create(world.path("kubeadmconfigs"), world.config("joining", "prod"))
    before = len(world.plane.requests())
    discovery: JsonMap = {"bootstrapToken": {"token": TOKEN, "apiServerEndpoint": "10.0.0.1:6443"}}
    written = world.client.patch(path, {"spec": {"joinConfiguration": {"discovery": discovery}}})
    assert text_at(written, "spec", "joinConfiguration", "discovery", "bootstrapToken", "token") == TOKEN
    assert list(maps_at(written, "spec", "files")) == list(maps_at(stored, "spec", "files"))
    assert is_rendered(map_at(written, "spec"))
    ours = [entry for entry in world.plane.requests()[before:] if "node-attestation" in entry.user]
    assert not [entry for entry in ours if "nodeattestationpolicies" in entry.uri and entry.verb == "list"]
    world.client.delete(path)


@pytest.mark.usefixtures("replica")
def test_a_pools_configuration_is_rendered_when_it_gets_its_cluster(world: WebhookWorld) -> None:
    created = world.client.create(world.path("kubeadmconfigs"), world.config("pool"))
    assert not is_rendered(map_at(created, "spec"))
    labels: JsonMap = {"metadata": {"labels": {"cluster.x-k8s.io/cluster-name": "prod"}}}
    assert is_rendered(map_at(world.client.patch(world.path("kubeadmconfigs", "pool"), labels), "spec"))


@pytest.mark.usefixtures("replica")
def test_a_control_plane_is_rendered_and_its_machines_are_as_it_is(world: WebhookWorld) -> None:
    world.cluster("whole", "prod")
    stored = world.client.create(world.path("kubeadmcontrolplanes"), world.control_plane("whole-cp"))
    spec = config_spec(stored)
    assert is_rendered(spec)
    for role, other in (("initConfiguration", "joinConfiguration"), ("joinConfiguration", "initConfiguration")):
        made = world.config(f"whole-{role.lower()}", "whole")
        map_at(made, "metadata", "labels")["cluster.x-k8s.io/control-plane"] = ""
        made["spec"] = {name: value for name, value in spec.items() if name != other}
        assert map_at(world.client.create(world.path("kubeadmconfigs"), made), "spec") == made["spec"]


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


@pytest.mark.usefixtures("replica")
def test_a_control_plane_that_stood_before_its_cluster_is_rendered_when_it_gets_its_owner(world: WebhookWorld) -> None:
    created = world.client.create(world.path("kubeadmcontrolplanes"), world.control_plane("late-cp"))
    assert not is_rendered(config_spec(created))
    owner = world.cluster("late", "prod")
    reference = {
        "apiVersion": owner["apiVersion"], "kind": "Cluster", "name": "late", "uid": text_at(owner, "metadata", "uid"),
    }  # fmt: skip
    owned: JsonMap = {"metadata": {"ownerReferences": [reference]}}
    assert is_rendered(config_spec(world.client.patch(world.path("kubeadmcontrolplanes", "late-cp"), owned)))


@pytest.mark.usefixtures("replica")
def test_a_control_plane_with_machines_is_rendered_when_new_ones_are_asked_for(world: WebhookWorld) -> None:
    world.client.create(world.path("kubeadmcontrolplanes"), world.control_plane("old-cp"))
    machine: JsonMap = {
        "apiVersion": f"cluster.x-k8s.io/{world.version}",
        "kind": "Machine",
        "metadata": {
            "name": "old-0",
            "labels": {"cluster.x-k8s.io/cluster-name": "old", "cluster.x-k8s.io/control-plane": ""},
        },
        "spec": {
            "clusterName": "old",
            "bootstrap": {"dataSecretName": "old-0"},
            "infrastructureRef": map_at(world.cluster("old", "prod"), "spec", "infrastructureRef"),
        },
    }
    world.client.create(world.path("machines"), machine)
    path = world.path("kubeadmcontrolplanes", "old-cp")
    annotated = world.client.patch(path, {"metadata": {"annotations": {"by": "its controller"}}})
    assert not is_rendered(config_spec(annotated))
    assert not is_rendered(config_spec(world.client.patch(path, {"spec": {"replicas": 5}})))
    after: JsonMap = {"rolloutAfter": "2026-01-01T00:00:00Z"}
    rollout: JsonMap = {"rollout": {"after": "2026-01-01T00:00:00Z"}} if world.version == "v1beta2" else after
    assert is_rendered(config_spec(world.client.patch(path, {"spec": rollout})))


@pytest.mark.usefixtures("replica")
def test_a_paused_cluster_is_moved_as_it_is(world: WebhookWorld) -> None:
    world.cluster("moved", "prod", paused=True)
    mine = world.control_plane("moved-cp")
    stored = world.client.create(world.path("kubeadmcontrolplanes"), mine)
    assert not is_rendered(config_spec(stored))
    stored = world.client.create(world.path("kubeadmconfigs"), world.config("moved", "moved"))
    assert not is_rendered(map_at(stored, "spec"))


@pytest.mark.usefixtures("replica")
def test_what_cannot_be_rendered_is_refused_with_what_to_do(world: WebhookWorld) -> None:
    mine = world.config("conflicting", "prod")
    map_at(mine, "spec", "joinConfiguration")["skipPhases"] = ["kubelet-start"]
    with pytest.raises(ApiRefusal, match=r"BootstrapConfigRefused: expected .*take it out") as refused:
        world.client.create(world.path("kubeadmconfigs"), mine)
    assert (refused.value.code, refused.value.reason) == (403, "BootstrapConfigRefused")


def test_where_a_client_ca_is_configured_strangers_do_not_get_past_the_handshake(
    world: WebhookWorld, replica: Controller
) -> None:
    """All other tests show that the API server does, by the files of the page."""
    del replica
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", world.port), timeout=60) as raw, context.wrap_socket(raw) as stranger:
        answer = b""
        with suppress(OSError):  # in TLS 1.3 a client learns of it by its first read
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: w\r\n\r\n")
            answer = stranger.recv(12)
    assert answer == (b"HTTP/1.1 404" if world.clients is None else b"")


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
def test_a_policy_that_is_invalid_is_refused_with_what_to_do(world: WebhookWorld) -> None:
    with pytest.raises(ApiRefusal, match=r"did you mean .certificateLifetime") as refused:
        world.policy("mistyped", "nowhere", certificateLimetime="1h")
    assert (refused.value.code, refused.value.reason) == (403, "PolicyInvalid")


@pytest.mark.usefixtures("replica")
def test_a_policy_that_overlaps_another_is_a_conflict_and_can_be_repaired(world: WebhookWorld) -> None:
    world.policy("stray", "prod")
    for name in ("stray", "enforced"):
        eventually(lambda name=name: ready_reason(world, name) == "Conflict", seconds=60, what=f"Conflict of {name}")
    path = f"{POLICIES}/stray"
    world.client.patch(path, {"spec": {"certificateLifetime": "24h"}})
    world.client.patch(path, {"spec": {"clusterSelector": {"matchLabels": {"env": "nowhere"}}}})
    eventually(lambda: ready_reason(world, "enforced") == "Valid", seconds=60, what="the end of the conflict")
    world.client.delete(path)


@pytest.mark.usefixtures("replica")
def test_without_the_namespaces_label_no_policy_comes_to_enforce_and_those_that_do_say_so(world: WebhookWorld) -> None:
    world.label(None)
    remedy = f"kubectl label namespace {NAMESPACE} attestation.cluster.x-k8s.io/bootstrap-config=enabled"
    path = f"{POLICIES}/unlabelled"
    try:
        eventually(lambda: refuses(world, remedy), what="the first call by the other path")
        world.policy("unlabelled", "nowhere", enforcement="Audit")
        with pytest.raises(ApiRefusal, match=remedy):
            world.client.patch(path, {"spec": {"enforcement": "Enforce"}})
        world.client.patch(f"{POLICIES}/enforced", {"spec": {"certificateLifetime": "24h"}})
        eventually(lambda: ready_reason(world, "enforced") == "NamespaceNotLabelled", seconds=60, what="the condition")
        assert ready_reason(world, "unlabelled") == "SelectsNothing"
        stored = world.client.create(world.path("kubeadmconfigs"), world.config("unlabelled", "prod"))
        assert not is_rendered(map_at(stored, "spec"))
    finally:
        world.label("enabled")
    world.client.patch(path, {"spec": {"clusterSelector": {"matchLabels": {"env": "elsewhere"}}}})
    eventually(lambda: ready_reason(world, "enforced") == "Valid", seconds=60, what="the end of the condition")
    world.client.delete(path)


@pytest.mark.usefixtures("replica")
def test_a_policy_says_when_the_webhook_is_not_called_for_its_namespace(world: WebhookWorld) -> None:
    kept = world.client.get(CONFIGURATION)
    touch: JsonMap = {"spec": {"certificateLifetime": "25h"}}
    world.client.delete(CONFIGURATION)
    try:
        world.client.patch(f"{POLICIES}/enforced", touch)
        eventually(lambda: ready_reason(world, "enforced") == "WebhookNotCalled", seconds=60, what="the condition")
        eventually(lambda: not rendered_now(world, "uncalled"), what="API servers that do not call the webhook")
        world.client.create(world.path("kubeadmcontrolplanes"), world.control_plane("prod-cp"))
    finally:
        meta: JsonMap = {"name": text_at(kept, "metadata", "name")}
        world.client.create(CONFIGURATION.rpartition("/")[0], {**kept, "metadata": meta})
    world.await_called()
    world.client.patch(f"{POLICIES}/enforced", {"spec": {"certificateLifetime": "24h"}})
    eventually(lambda: ready_reason(world, "enforced") == "Valid", seconds=90, what="the end of the condition")
    eventually(lambda: rendered_now(world, "called"), what="API servers that call the webhook")
    count = status_of(world, "enforced")["unrenderedControlPlanes"]  # more, where tests before left some
    counted = rf"the KubeadmControlPlane of (\S+, )*prod(, \S+)* is not rendered, or cannot be read \({count} in all\)"
    assert re.search(counted, ready_message(world, "enforced"))
    world.client.delete(world.path("kubeadmcontrolplanes", "prod-cp"))

    world.label("disabled")
    try:
        world.client.patch(f"{POLICIES}/enforced", touch)
        eventually(lambda: ready_reason(world, "enforced") == "RenderingDisabled", seconds=60, what="the decision")
    finally:
        world.label("enabled")
    world.client.patch(f"{POLICIES}/enforced", {"spec": {"certificateLifetime": "24h"}})
    eventually(lambda: ready_reason(world, "enforced") == "Valid", seconds=60, what="the end of the condition")


def status_of(world: WebhookWorld, policy: str) -> JsonMap:
    return map_at(world.client.get(f"{POLICIES}/{policy}"), "status")


def ready_message(world: WebhookWorld, policy: str) -> str:
    conditions = maps_at(status_of(world, policy), "conditions")
    return next((text_at(one, "message") for one in conditions if one["type"] == "Ready"), "")


def rendered_now(world: WebhookWorld, name: str) -> bool:
    """Create a configuration on trial, and tell whether it is rendered."""
    made = world.client.create(world.path("kubeadmconfigs"), world.config(name, "prod"), dryRun="All")
    return is_rendered(map_at(made, "spec"))


def refuses(world: WebhookWorld, remedy: str) -> bool:
    try:
        world.policy("probe", "nowhere", dry_run=True)
    except ApiRefusal as refusal:
        return remedy in str(refusal)
    return False


def ready_reason(world: WebhookWorld, policy: str) -> str:
    conditions = maps_at(world.client.get(f"{POLICIES}/{policy}"), "status", "conditions")
    return next((text_at(one, "reason") for one in conditions if one["type"] == "Ready"), "")


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
    logs = "".join(file.read_text() for file in world.directory.glob("*.log"))
    assert "bootstrap configuration" in logs
    assert TOKEN.partition(".")[2] not in logs
    assert "PRIVATE KEY" not in logs
