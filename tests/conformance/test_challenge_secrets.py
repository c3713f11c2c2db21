"""manifests/challenge-secrets on a real API server, and a Machine that joins by challenge with nothing done by hand.

The test plays Cluster API: it makes Machines, gives them their KubeadmConfigs, and makes bootstrap data of these as the
kubeadm bootstrap provider does (resolveFiles).
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from kustomized import TREE
from polling import eventually
from webhook_world import NAMESPACE, WebhookWorld
from world import CSRS, Agent, Controller, node_of

from nodeattest_controller.model.challenge_secret import SECRET_FILE, SECRET_TYPE
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at, texts_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, free_ports, start_real

pytestmark = pytest.mark.conformance
SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
OWN: Final = "own-attestation-challenge"
TENANT: Final = "tenant"
LIMITS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/nodeattest-challenge-secrets"


@pytest.fixture(scope="module")
def world(assets: Path, capi_definitions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebhookWorld]:
    directory = tmp_path_factory.mktemp("challenge-secrets")
    with start_real(directory / "plane", assets, name="management") as plane:
        made = WebhookWorld(plane, directory, "v1beta2", free_ports(1)[0])
        made.install(capi_definitions)
        rules: list[JsonValue] = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "update", "get"]}]
        made.client.create(f"{RBAC}/namespaces/{NAMESPACE}/roles", {"metadata": {"name": TENANT}, "rules": rules})
        subjects: list[JsonValue] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}]
        role: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": TENANT}
        binding: JsonMap = {"metadata": {"name": TENANT}, "subjects": subjects, "roleRef": role}
        made.client.create(f"{RBAC}/namespaces/{NAMESPACE}/rolebindings", binding)
        yield made


@pytest.fixture(scope="module")
def limited(world: WebhookWorld) -> WebhookWorld:
    """The world with the right to create Secrets, and what limits it."""
    world.kubectl("apply", "-k", str(TREE / "challenge-secrets"))
    account = world.plane.client(world.account())

    def is_limited() -> bool:
        return refusal_of(account, secret(name="probe", type="Opaque")).startswith("ValidatingAdmissionPolicy")

    eventually(is_limited, seconds=60, what="the ValidatingAdmissionPolicy")
    return world


def owner(name: str = "own", **fields: JsonValue) -> JsonMap:
    return {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmConfig",
        "name": name,
        "uid": "6a4ae0ff-55cd-4b29-8d1a-11d1a1a1a1a1",
        **fields,
    }


def secret(name: str = OWN, owners: list[JsonMap] | None = None, **fields: JsonValue) -> JsonMap:
    """Make a Secret as the controller does, but for these."""
    references: list[JsonValue] = [*([owner()] if owners is None else owners)]
    return {
        "metadata": {"name": name, "ownerReferences": references},
        "type": SECRET_TYPE,
        "immutable": True,
        "data": {"secret": base64.b64encode(b"5e" * 32).decode()},
        **fields,
    }


def owned_by(stored: JsonMap, *owners: JsonMap) -> JsonMap:
    references: list[JsonValue] = [*owners]
    metadata: JsonMap = {**map_at(stored, "metadata"), "ownerReferences": references}
    return {**stored, "metadata": metadata}


def refusal_of(client: Client, body: JsonMap, namespace: str = NAMESPACE) -> str:
    """Say why a Secret may not be created, by whom; empty where it may. Nothing is stored."""
    try:
        client.create(f"/api/v1/namespaces/{namespace}/secrets", body, dryRun="All")
    except ApiRefusal as refusal:
        _, _, said = str(refusal).partition("is forbidden: ")
        return said or str(refusal)
    return ""


TOKEN_OF: Final[JsonMap] = {"annotations": {"kubernetes.io/service-account.name": "default"}}
REFUSED: Final[dict[str, JsonMap]] = {
    "a ServiceAccount's token": {"metadata": {"name": OWN, **TOKEN_OF}, "type": "kubernetes.io/service-account-token"},
    "a bootstrap token": {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token"},
    "no type": {"metadata": {"name": OWN}},
    "another type": secret(type="cluster.x-k8s.io/secret"),
    "another name": secret(name="prod-kubeconfig"),
    "the name of another configuration": secret(owners=[owner("other")]),
    "no owner": secret(owners=[]),
    "two owners": secret(owners=[owner(), owner("own", uid="6a4ae0ff-55cd-4b29-8d1a-11d1a1a1a1a2")]),
    "an owner of another kind": secret(owners=[owner(kind="Machine")]),
    "an owner of another group": secret(owners=[owner(apiVersion="example.com/v1")]),
    "one that can be changed": secret(immutable=False),
    "one that does not say": {name: value for name, value in secret().items() if name != "immutable"},
    "a second key": secret(data={"secret": "eA==", "more": "eA=="}),
    "another key": secret(data={"value": "eA=="}),
}


def test_without_the_optional_role_the_controller_creates_secrets_in_its_own_namespace_only(
    world: WebhookWorld,
) -> None:
    account = world.plane.client(world.account())
    assert "cannot create resource" in refusal_of(account, secret())


def test_the_controllers_account_may_create_the_one_secret_of_a_configuration(limited: WebhookWorld) -> None:
    account = limited.plane.client(limited.account())
    assert refusal_of(account, secret()) == ""
    own: JsonMap = {"metadata": {"name": "node-attestation-challenge-keys"}, "type": "Opaque"}
    assert refusal_of(account, own, "nodeattest-system") == ""


@pytest.mark.parametrize("what", REFUSED)
def test_the_controllers_account_may_create_nothing_else(limited: WebhookWorld, what: str) -> None:
    account = limited.plane.client(limited.account())
    for namespace in (NAMESPACE, "kube-system"):
        assert "ValidatingAdmissionPolicy 'nodeattest-challenge-secrets'" in refusal_of(
            account, REFUSED[what], namespace
        )


def test_in_its_own_namespace_it_may_make_no_serviceaccounts_token(limited: WebhookWorld) -> None:
    account = limited.plane.client(limited.account())
    for what in ("a ServiceAccount's token", "a bootstrap token"):
        assert "ValidatingAdmissionPolicy" in refusal_of(account, REFUSED[what], "nodeattest-system")


def test_nobody_else_creates_one_or_takes_one_over(limited: WebhookWorld) -> None:
    tenant = limited.plane.client(limited.plane.client_kubeconfig(TENANT))
    assert "only the node attestation controller" in refusal_of(tenant, secret())
    assert refusal_of(tenant, secret(type="Opaque")) == ""  # of other types it is none of our business
    made = limited.client.create(SECRETS, secret())  # clusterctl move, as cluster-admin
    with pytest.raises(ApiRefusal, match="only the node attestation controller"):
        tenant.replace(f"{SECRETS}/{OWN}", owned_by(made, owner(uid="another")))
    tenant.replace(f"{SECRETS}/{OWN}", owned_by(made))  # as the garbage collector does; then nobody uses it
    limited.client.delete(f"{SECRETS}/{OWN}")


# A Machine that joins


@dataclass(frozen=True)
class Site:
    """A workload cluster, and Cluster API in the management cluster as the test plays it."""

    world: WebhookWorld
    workload: ControlPlane
    controller: Controller
    directory: Path

    @property
    def client(self) -> Client:
        return self.world.client

    def create(self, name: str, token: str) -> JsonMap:
        """Make a worker Machine: KubeadmConfig first, then the Machine, which becomes its owner."""
        self.client.create(self.world.path("kubeadmconfigs"), self.world.config(name, "prod"))
        reference: JsonMap = {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name}
        infra: JsonMap = {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevMachine", "name": name}
        spec: JsonMap = {"clusterName": "prod", "bootstrap": {"configRef": reference}, "infrastructureRef": infra}
        labels: JsonMap = {"cluster.x-k8s.io/cluster-name": "prod"}
        body: JsonMap = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        body |= {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine"}
        machine = self.client.create(self.world.path("machines"), body)
        by: JsonMap = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "controller": True}
        by |= {"name": name, "uid": text_at(machine, "metadata", "uid")}
        discovery: JsonMap = {"bootstrapToken": {"token": token, "apiServerEndpoint": "h:1"}}
        discovery["bootstrapToken"] = {**map_at(discovery, "bootstrapToken"), "caCertHashes": ["sha256:" + "0" * 64]}
        patch: JsonMap = {
            "metadata": {"ownerReferences": [by]},
            "spec": {"joinConfiguration": {"discovery": discovery}},
        }
        return self.client.patch(self.world.path("kubeadmconfigs", name), patch)

    def data(self, name: str) -> dict[str, str]:
        """Make the files of the bootstrap data, as soon as each Secret that they refer to exists."""
        config = self.client.get(self.world.path("kubeadmconfigs", name))

        def resolve() -> dict[str, str] | None:
            files: dict[str, str] = {}
            for file in maps_at(config, "spec", "files"):
                source = map_at(map_at(file, "contentFrom"), "secret") if "contentFrom" in file else {}
                try:
                    held = self.client.get(f"{SECRETS}/{text_at(source, 'name')}") if source else {}
                except ApiRefusal:
                    return None
                content = base64.b64decode(text_at(held, "data", text_at(source, "key"))).decode() if source else ""
                files[text_at(file, "path")] = content or text_at(file, "content")
            return files

        files = eventually(resolve, seconds=60, what="the Secret")
        self._provision(name)
        return files

    def _provision(self, name: str) -> None:
        """Say what Cluster API says once the data is there and the infrastructure machine runs."""
        status: JsonMap = {"dataSecretName": name, "initialization": {"dataSecretCreated": True}}
        self.client.patch(self.world.path("kubeadmconfigs", name) + "/status", {"status": status})
        spec: JsonMap = {"providerID": f"sandbox://{name}", "bootstrap": {"dataSecretName": name}}
        self.client.patch(self.world.path("machines", name), {"spec": spec})
        addresses: list[JsonValue] = [{"type": "Hostname", "address": name}]
        status = {"addresses": addresses, "initialization": {"bootstrapDataSecretCreated": True}}
        self.client.patch(self.world.path("machines", name) + "/status", {"status": status})

    def token(self, number: int) -> str:
        return self.workload.await_token(
            fleet.create_bootstrap_token(self.workload.client(), f"tok{number:03}.0123456789abcdef")
        )

    def agent(self, name: str, secret: str, directory: str = "") -> Agent:
        """Boot a machine with a secret in the file that its user data wrote."""
        where = self.directory / (directory or name)
        where.mkdir(exist_ok=True)
        file = where / "secret"
        file.write_text(secret)
        file.chmod(0o600)
        return Agent(
            directory=where,
            server=self.workload.server,
            ca_file=self.workload.ca_certificate,
            node_name=name,
            provider="challenge",
            provider_id=f"sandbox://{name}",
            settings={"secretFile": str(file)},
        )

    def denials(self, node: str) -> list[str]:
        requests = [one for one in self.workload.client().list(CSRS) if node_of(one) == node]
        return [
            text_at(condition, "reason")
            for one in requests
            for condition in maps_at(map_at(one, "status"), "conditions")
            if text_at(condition, "type") == "Denied"
        ]


@pytest.fixture(scope="module")
def site(limited: WebhookWorld, assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("nodes")
    with start_real(directory / "plane", assets, name="workload") as workload:
        limited.policy("challenge", "prod", authorizedAttestors=["challenge"], challenge={"createSecrets": True})
        limited.cluster("prod", "prod")
        parts = {
            "kubeconfig": {"value": workload.admin_kubeconfig},
            "ca": {"tls.crt": workload.pki.ca_certificate, "tls.key": workload.pki.ca_key},
        }
        for suffix, files in parts.items():
            data: JsonMap = {key: base64.b64encode(path.read_bytes()).decode() for key, path in files.items()}
            labels: JsonMap = {"cluster.x-k8s.io/cluster-name": "prod"}
            body: JsonMap = {"metadata": {"name": f"prod-{suffix}", "labels": labels}, "data": data}
            limited.client.create(SECRETS, {**body, "type": "cluster.x-k8s.io/secret"})
        with limited.replica("controller", more=["--namespace", "nodeattest-system"]) as running:
            limited.await_called()
            bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"

            def serves() -> bool:
                names = {text_at(one, "metadata", "name") for one in workload.client().list(bindings)}
                return "nodeattest:node-bootstrapper" in names

            eventually(serves, seconds=60, what="the bootstrappers' binding")
            yield Site(limited, workload, running, directory)


def test_a_machine_joins_by_a_secret_that_nobody_wrote_by_hand_and_renews_by_it(site: Site) -> None:
    token = site.token(1)
    config = site.create("w1", token)
    [command] = [one for one in texts_at(config, "spec", "preKubeadmCommands") if "kubelet-authenticator" in one]
    assert f'secretFile="{SECRET_FILE}"' in shlex.split(command)
    files = site.data("w1")
    stored = site.client.get(f"{SECRETS}/w1-attestation-challenge")
    [owning] = maps_at(stored, "metadata", "ownerReferences")
    assert text_at(owning, "uid") == text_at(config, "metadata", "uid")
    assert files[SECRET_FILE] not in str(config)
    assert files[SECRET_FILE] not in site.controller.log()
    agent = site.agent("w1", files[SECRET_FILE])
    joined = agent.join(token)
    assert joined.returncode == 0, joined.stderr
    renewed = agent.join(token, "--renew")
    assert renewed.returncode == 0, renewed.stderr
