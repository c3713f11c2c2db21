"""An outage of the webhook while Cluster API's real bootstrap manager names a machine's token.

An admission webhook in the workload cluster ends our controller before the token is stored, so nobody answers at the
manager's next update of the KubeadmConfig. Without the shipped ``matchConditions`` this very outage loses the machine.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, cast

import pytest
from kinds import secret
from managers import start_manager
from needs import lacks
from polling import eventually
from webhook_world import CONFIGURATION, NAMESPACE, WebhookWorld
from world import Controller

from nodeattest_controller.model.token_binding import NamedTokens, named_tokens
from nodeattest_controller.model.webhook_configuration import shipped_configuration
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at, value_at
from nodeattest_sandbox.child_process import wait
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane, free_ports, listens, start_real

pytestmark = pytest.mark.conformance
PROGRAM: Final = "capi-kubeadm-bootstrap-manager"
SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
TOKEN_TYPE: Final = "bootstrap.kubernetes.io/token"
HOOKS: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@dataclass(frozen=True)
class Site:
    """A management cluster with our webhook and the bootstrap manager, and its one workload cluster."""

    world: WebhookWorld
    replica: Controller
    workload: ControlPlane

    def create_machine(self, name: str) -> None:
        """Create a Machine and its KubeadmConfig, as a MachineSet does."""
        client, world = self.world.client, self.world
        reference: JsonMap = {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name}
        machine: JsonMap = {
            "apiVersion": f"cluster.x-k8s.io/{world.version}",
            "kind": "Machine",
            "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": "prod"}},
            "spec": {
                "clusterName": "prod",
                "version": "v1.34.0",
                "bootstrap": {"configRef": reference},
                "infrastructureRef": {
                    "apiGroup": "infrastructure.cluster.x-k8s.io",
                    "kind": "DevMachine",
                    "name": name,
                },
            },
        }
        created = client.create(world.path("machines"), machine)
        owner: JsonMap = {
            "apiVersion": machine["apiVersion"],
            "kind": "Machine",
            "name": name,
            "uid": text_at(created, "metadata", "uid"),
            "controller": True,
        }
        client.create(world.path("kubeadmconfigs"), world.config(name, "prod", ownerReferences=[owner]))

    def config(self, name: str) -> JsonMap:
        return self.world.client.get(self.world.path("kubeadmconfigs", name))

    def named(self, name: str) -> NamedTokens:
        return named_tokens(cast("JsonObject", self.config(name)))

    def is_reconciled(self, name: str) -> bool:
        """Tell whether the bootstrap manager succeeded since the last change of the spec."""
        found = self.config(name)
        return value_at(found, "status", "observedGeneration") == value_at(found, "metadata", "generation")

    def reviews(self) -> float:
        return self.replica.metric("nodeattest_admission_requests_total")


@pytest.fixture(scope="module")
def site(assets: Path, capi_definitions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    program = Path(os.environ.get("CAPI_ASSETS", "")) / PROGRAM
    if not program.is_file():
        lacks(f"CAPI_ASSETS names no folder with {PROGRAM}")
    directory = tmp_path_factory.mktemp("outage")
    port, manager_port = free_ports(2)
    with ExitStack() as stack:
        plane = stack.enter_context(start_real(directory / "plane", assets, name="management"))
        workload = stack.enter_context(start_real(directory / "workload", assets, name="workload"))
        world = WebhookWorld(plane, directory, "v1beta2", port)
        world.install(capi_definitions)
        world.policy("enforced", "prod")
        replica = stack.enter_context(world.replica("a"))
        world.await_called()
        add_cluster(world, workload)
        manager = start_manager(program, plane, plane.admin_kubeconfig, port=manager_port)
        stack.callback(manager.stop)
        wait(manager, lambda: listens(manager_port))
        yield Site(world, replica, workload)


def add_cluster(world: WebhookWorld, workload: ControlPlane) -> None:
    """Create a Cluster whose control plane answers, with the Secrets that Cluster API keeps of it."""
    world.cluster("prod", "prod")
    authority = {"tls.crt": workload.ca_certificate.read_bytes(), "tls.key": workload.ca_key.read_bytes()}
    for name, data in (("ca", authority), ("kubeconfig", {"value": workload.admin_kubeconfig.read_bytes()})):
        made = secret(f"prod-{name}", "prod", data)
        world.client.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", cast("JsonMap", made))
    host, _, port = workload.server.removeprefix("https://").partition(":")
    # Without a KubeadmControlPlane, whose version the manager would read.
    spec: JsonMap = {"controlPlaneEndpoint": {"host": host, "port": int(port)}, "controlPlaneRef": None}
    world.client.patch(world.path("clusters", "prod"), {"spec": spec})
    condition: JsonMap = {
        "type": "ControlPlaneInitialized",
        "status": "True",
        "reason": "Initialized",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    initialization: JsonMap = {"infrastructureProvisioned": True, "controlPlaneInitialized": True}
    status: JsonMap = {"status": {"initialization": initialization, "conditions": [condition]}}
    world.client.patch(f"{world.path('clusters', 'prod')}/status", status)


@contextmanager
def before_each_token(plane: ControlPlane, act: Callable[[], None]) -> Generator[None]:
    """Call ``act`` before a bootstrap token is stored, by an admission webhook of the cluster."""
    called = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            if not request["dryRun"]:
                act()
            called.set()
            answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
            body = json.dumps(answer | {"response": {"uid": request["uid"], "allowed": True}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(plane.pki.server_certificate, plane.pki.server_key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = plane.client()
        client.create(HOOKS, _hook(plane, f"https://127.0.0.1:{server.server_port}/"))

        def is_called() -> bool:
            token: JsonMap = {"metadata": {"name": "bootstrap-token-zzzzzz"}, "type": TOKEN_TYPE}
            client.create(SECRETS, {"apiVersion": "v1", "kind": "Secret", **token}, dryRun="All")
            return called.is_set()

        try:
            eventually(is_called, seconds=60, what="the call before a token")
            yield
        finally:
            client.delete(f"{HOOKS}/tokens")
            server.shutdown()


def _hook(plane: ControlPlane, url: str) -> JsonMap:
    bundle = base64.b64encode(plane.ca_certificate.read_bytes()).decode()
    webhook: JsonMap = {
        "name": "tokens.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "NoneOnDryRun",
        "clientConfig": {"url": url, "caBundle": bundle},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}],
        "matchConditions": [{"name": "token", "expression": f"object.type == '{TOKEN_TYPE}'"}],
    }
    head: JsonMap = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    return {**head, "metadata": {"name": "tokens"}, "webhooks": [webhook]}


@contextmanager
def without_conditions(site: Site) -> Generator[None]:
    """Take the matchConditions out of the webhook's configuration."""
    client = site.world.client
    site.create_machine("usual")
    eventually(lambda: site.named("usual").ids, seconds=60, what="the token of a machine without an outage")

    def touch_calls() -> bool:
        before = site.reviews()
        client.patch(site.world.path("kubeadmconfigs", "usual"), {"metadata": {"labels": {"a": "b"}}}, dryRun="All")
        return site.reviews() > before

    assert not touch_calls()
    client.patch(CONFIGURATION, [{"op": "remove", "path": "/webhooks/0/matchConditions"}], "json")
    try:
        eventually(touch_calls, seconds=60, what="API servers without the conditions")
        yield
    finally:
        [webhook] = maps_at(cast("JsonMap", shipped_configuration()), "webhooks")
        added: JsonMap = {"op": "add", "path": "/webhooks/0/matchConditions", "value": webhook["matchConditions"]}
        client.patch(CONFIGURATION, [added], "json")
        eventually(lambda: not touch_calls(), seconds=60, what="API servers with the conditions")


def outage_at_token(site: Site, name: str) -> None:
    """Make a machine whose token is made at the moment when the webhook ends; it comes back when the data is made."""
    with before_each_token(site.workload, site.replica.kill):
        site.create_machine(name)
        eventually(lambda: site.named(name).settled, seconds=120, what="the bootstrap data")
    try:
        with pytest.raises(ApiRefusal, match="failed calling webhook"):
            site.world.client.create(site.world.path("kubeadmconfigs"), site.world.config("meanwhile", "prod"))
    finally:
        site.replica.start()
        site.world.await_called()
    eventually(lambda: site.is_reconciled(name), seconds=120, what="a reconcile after the outage")


def test_an_outage_between_a_token_and_its_name_loses_no_machine(site: Site) -> None:
    outage_at_token(site, "kept")
    [token_id] = site.named("kept").ids
    assert text_at(site.workload.client().get(f"{SECRETS}/bootstrap-token-{token_id}"), "type") == TOKEN_TYPE
    assert "kubelet-authenticator" in str(map_at(site.config("kept"), "spec")["preKubeadmCommands"])


def test_the_same_outage_loses_the_machine_without_the_conditions(site: Site) -> None:
    with without_conditions(site):
        outage_at_token(site, "lost")
        assert site.named("lost").token_lost
