"""Machines of every infrastructure provider, beside a real API server that calls our webhook.

A row of providers.yaml says what a provider writes and when; this module does what Cluster API's own controllers do in
between: it clones a template, names a bootstrap token, and copies what infrastructure machines say of themselves.
Source: Cluster API book, provider contracts; bootstrap/kubeadm/internal/controllers/kubeadmconfig_controller.go.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from string import Template
from typing import Any, Final, cast
from uuid import NAMESPACE_URL, uuid5

import yaml
from cryptography import x509
from guest import Guest
from kinds import CONFIG, MACHINE, Kind, Object, made, owner, secret
from kubernetes_assets import join_configuration
from test_discovery_system import await_signature, operate
from webhook_world import WebhookWorld
from world import CLUSTER as CLUSTER_NAME
from world import NAMESPACE, Agent, Controller, World

from nodeattest_controller.model.webhook_label import LABEL
from nodeattest_discovery.pins import pin_of
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane, free_ports
from nodeattest_sandbox.definitions import small_definition
from nodeattest_sandbox.swtpm import SoftwareTpm

__all__ = ["PROVIDERS", "ProviderMachine", "ProviderWorld", "Row"]

_ATTESTOR: Final = "attestation.cluster.x-k8s.io/attestor"
_CONTRACT: Final[JsonMap] = {"cluster.x-k8s.io/v1beta1": "v1alpha1_v1alpha2_v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta2"}
_NUMBERS: Final = count(11)
Row = dict[str, Any]
"""A document of providers.yaml."""


def _documents() -> dict[str, str]:
    documents = Path(__file__).with_name("providers.yaml").read_text().split("\n---\n")[1:]
    return {str(yaml.safe_load(document)["provider"]): document for document in documents}


PROVIDERS: Final = _documents()


class ProviderWorld(World):
    """A management cluster with real Cluster API kinds, and a workload cluster."""

    def __init__(self, directory: Path, management: ControlPlane, workload: ControlPlane, definitions: Path) -> None:
        (port,) = free_ports(1)
        self.webhook = WebhookWorld(management, directory, "v1beta2", port)
        self.webhook.install(definitions)
        self._policy: JsonMap = {}
        super().__init__(directory, management, workload)

    def definitions(self) -> list[JsonMap]:
        """Return the kinds of the infrastructure providers; ours are installed as they are shipped."""
        found: dict[str, JsonMap] = {}
        for document in PROVIDERS.values():
            row = yaml.safe_load(document)
            for each in (row["infra"], row.get("host")):
                if each is not None:
                    kind = _kind(each)
                    definition = small_definition(kind.group, kind.plural, kind.kind, [kind.version], labels=_CONTRACT)
                    found[f"{kind.plural}.{kind.group}"] = definition
        return list(found.values())

    def _make_cluster(self) -> JsonMap:
        label: JsonMap = {"name": NAMESPACE, "labels": {LABEL: "enabled"}}
        self.admin.create("/api/v1/namespaces", {"metadata": label})
        references = {
            "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "cp"},
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevCluster", "name": "c1"},
        }
        return fleet.create_cluster(
            self.admin,
            CLUSTER_NAME,
            namespace=NAMESPACE,
            kubeconfig=self.workload.admin_kubeconfig.read_bytes(),
            ca_certificate=self.workload.ca_certificate.read_bytes(),
            ca_key=self.workload.ca_key.read_bytes(),
            spec=cast("JsonMap", references),
            contract="v1beta2",
        )

    @contextmanager
    def served(self) -> Generator[Controller]:
        """Run the controller as its service account, with the rights of the manifests."""
        more = ("--leader-elect", "false", "--controllers=*,bootstrap-signer,token-cleaner")
        with self.webhook.replica("controller", more=more) as running:
            self.webhook.await_announced()
            self.await_service(running)
            operate(self, "cluster-info", "publish", "--token", "", "--replace")
            yield running

    def require(self, policy: JsonMap, *, observed: bool = True) -> None:
        """Make this the cluster's policy, and wait until a controller that runs goes by it."""
        if policy != self._policy:
            self.set_policy(tokenBinding="Required", **policy)
            self._policy = policy
            if observed:
                self.await_policy()


def _kind(described: Mapping[str, str]) -> Kind:
    group, _, version = described["apiVersion"].partition("/")
    return Kind(group, described["plural"], described["kind"], version)


@dataclass
class ProviderMachine:
    """A Machine of a provider with everything that belongs to it."""

    world: ProviderWorld
    provider: str
    name: str
    token: str = ""
    number: int = field(default_factory=lambda: next(_NUMBERS))
    guest: Guest | None = None
    written: set[tuple[Kind, str]] = field(default_factory=set[tuple[Kind, str]])

    @cached_property
    def tpm(self) -> SoftwareTpm:
        return self.world.tpm(self.name)

    @cached_property
    def secret_file(self) -> Path:
        """The machine's own secret, where its image has it; the Secret has the same."""
        path = self.world.directory / f"{self.name}.secret"
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_hex(32).encode())
        body = secret(f"{self.name}-attestation", CLUSTER_NAME, {"secret": path.read_bytes()})
        self.world.admin.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", cast("JsonMap", body))
        return path

    @cached_property
    def row(self) -> Row:
        """The provider's row with the values of this machine."""
        document = PROVIDERS[self.provider]
        values = {
            "name": self.name,
            "namespace": NAMESPACE,
            "host": f"rack-{self.number}",
            "number": str(self.number),
            "uuid": str(uuid5(NAMESPACE_URL, self.name)),
            "address": f"10.0.0.{self.number}",
            "ek": self.tpm.endorsement_fingerprint() if "$ek" in document else "",
        }
        return cast("Row", yaml.safe_load(Template(document).substitute(values)))

    @property
    def node(self) -> str:
        return str(self.row["expect"]["node"])

    @property
    def provider_id(self) -> str:
        return str(self.row["expect"]["providerID"])

    def create(self) -> None:
        """Make what a MachineSet clones, what the provider writes at once, and what the bootstrap provider makes."""
        row = self.row
        self.step("created")
        config = made(CONFIG, self.name, CLUSTER_NAME, {"joinConfiguration": {"nodeRegistration": self._registration()}})
        config["metadata"]["annotations"] = {_ATTESTOR: row["attestor"]}
        config = self._create(CONFIG, config)
        infra = _kind(row["infra"])
        references = {
            "clusterName": CLUSTER_NAME,
            "bootstrap": {"configRef": {"apiGroup": CONFIG.group, "kind": CONFIG.kind, "name": self.name}},
            "infrastructureRef": {"apiGroup": infra.group, "kind": infra.kind, "name": self.name},
        }
        machine = self._create(MACHINE, made(MACHINE, self.name, CLUSTER_NAME, references))
        for kind in (CONFIG, infra):
            self._patch(kind, {"metadata": {"ownerReferences": [owner(machine)]}})
        self._bootstrap()

    def step(self, name: str) -> None:
        """Write what the provider writes in this step, then what Cluster API makes of it."""
        for change in self.row.get(name, []):
            for role, content in change.items():
                self._write(_kind(self.row[role]), self._name_of(role), content)
        if name != "created":
            self._copy()

    def boot(self) -> None:
        """Start the machine by what is stored in its bootstrap configuration."""
        known = self.row["guest"]
        spec = cast("Object", self._read(CONFIG))["spec"]
        self.guest = Guest(
            folder=self.world.directory / "guests" / self.name,
            hostname=known["hostname"],
            agent_flags=(*self._proof_flags(), *self.row.get("agent", ())),
            dmi=known.get("dmi", {}),
            instance_data=known.get("instanceData", {}),
        )
        configuration = dict(spec["joinConfiguration"])
        self.guest.boot(spec, join_configuration(configuration.pop("discovery"), **configuration))

    def becomes_node(self) -> None:
        """Register the Node as its kubelet does, and let provider and Cluster API see it."""
        node = {"metadata": {"name": self.node, "labels": self.row.get("nodeLabels", {})}}
        created = cast("Object", self.world.workload_admin.create("/api/v1/nodes", cast("JsonMap", node)))
        self.step("joined")
        reference = {"nodeRef": {"name": self.node}}
        self._patch(MACHINE, {"status": reference}, "status")
        self.world.workload_admin.patch(f"/api/v1/nodes/{self.node}", {"spec": {"providerID": self.provider_id}})
        assert created["metadata"]["name"] == self.node

    def thief(self, proofs: ProviderMachine) -> Agent:
        """Make an agent that claims to be this machine with the proofs of another."""
        flags = {"tpm": {"tcti": proofs.tpm.tcti}, "challenge": {"secretFile": str(proofs.secret_file)}}
        attestor = str(self.row["attestor"])
        directory = f"{self.name}-by-{proofs.name}"
        return self.world.agent(
            self.node, attestor, directory=directory, provider_id=self.provider_id, **flags[attestor]
        )

    def _proof_flags(self) -> Sequence[str]:
        return {
            "tpm": lambda: ("--tcti", self.tpm.tcti),
            "challenge": lambda: ("--set", f"secretFile={self.secret_file}"),
        }[self.row["attestor"]]()

    def _registration(self) -> Object:
        template = self.row["template"]
        found: Object = {"name": template["name"]} if "name" in template else {}
        if "providerID" in template:
            found["kubeletExtraArgs"] = [{"name": "provider-id", "value": template["providerID"]}]
        return found

    def _bootstrap(self) -> None:
        """Do as the bootstrap provider does: a token, discovery, the data Secret, the status."""
        token = f"{secrets.token_hex(3)}.{secrets.token_hex(8)}"
        self.token = fleet.create_bootstrap_token(self.world.workload_admin, token)
        ca = x509.load_pem_x509_certificate(self.world.workload.ca_certificate.read_bytes())
        by_token = {
            "token": token,
            "apiServerEndpoint": self.world.workload.server.removeprefix("https://"),
            "caCertHashes": [str(pin_of(ca))],
        }
        self._patch(CONFIG, {"spec": {"joinConfiguration": {"discovery": {"bootstrapToken": by_token}}}})
        name = f"{self.name}-bootstrap"
        body = secret(name, CLUSTER_NAME, {"value": b"#cloud-config\n"})
        self.world.admin.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", cast("JsonMap", body))
        done = {"dataSecretName": name, "initialization": {"dataSecretCreated": True}}
        self._patch(CONFIG, {"status": done}, "status")
        self._patch(MACHINE, {"spec": {"bootstrap": {"dataSecretName": name}}})
        self._patch(MACHINE, {"status": {"initialization": {"bootstrapDataSecretCreated": True}}}, "status")
        self.world.workload.await_token(token)
        await_signature(self.world, token.partition(".")[0])

    def _copy(self) -> None:
        """Copy what a provisioned infrastructure machine says, as the Machine controller does."""
        infra = self._read(_kind(self.row["infra"]))
        status = infra.get("status", {})
        provider_id = infra.get("spec", {}).get("providerID")
        if not (status.get("ready") or status.get("initialization", {}).get("provisioned")) or not provider_id:
            return
        self._patch(MACHINE, {"spec": {"providerID": provider_id}})
        said = {"addresses": status.get("addresses", []), "initialization": {"infrastructureProvisioned": True}}
        self._patch(MACHINE, {"status": said}, "status")

    def _write(self, kind: Kind, name: str, content: Object) -> None:
        if (kind, name) not in self.written:
            value = made(kind, name, CLUSTER_NAME, content.get("spec", {}), **content.get("metadata", {}))
            self._create(kind, value)
            self.written.add((kind, name))
        elif content.keys() - {"status"}:
            self._patch(kind, {key: value for key, value in content.items() if key != "status"}, name=name)
        if "status" in content:
            self._patch(kind, {"status": content["status"]}, "status", name=name)

    def _name_of(self, role: str) -> str:
        return self.name if role == "infra" else str(self.row[role]["name"])

    def _create(self, kind: Kind, value: Object) -> Object:
        return cast("Object", self.world.admin.create(kind.path(NAMESPACE), cast("JsonMap", value)))

    def _read(self, kind: Kind) -> Object:
        return cast("Object", self.world.admin.get(kind.path(NAMESPACE, self.name)))

    def _patch(self, kind: Kind, patch: Object, subresource: str = "", *, name: str = "") -> None:
        self.world.admin.patch(kind.path(NAMESPACE, name or self.name, subresource), cast("JsonMap", patch))
