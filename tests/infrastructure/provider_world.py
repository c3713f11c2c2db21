"""Machines of every infrastructure provider, beside a real API server that calls our webhook.

A row of providers.yaml says what a provider writes and when; this module does what Cluster API's own controllers do in
between: it clones a template, names a bootstrap token, and copies what infrastructure machines say of themselves.
Source: Cluster API book, provider contracts; bootstrap/kubeadm/internal/controllers/kubeadmconfig_controller.go.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from string import Template
from typing import Any, Final, cast
from uuid import NAMESPACE_URL, UUID, uuid5

import yaml
from cloud_fleets import CLOUDS, CloudInstances, Instance
from cryptography import x509
from guest import Guest
from kinds import CONFIG, MACHINE, Kind, Object, made, owner, secret
from kubernetes_assets import join_configuration
from test_discovery_system import await_signature, operate
from webhook_world import WebhookWorld
from world import CLUSTER, NAMESPACE, Agent, Controller, World

from nodeattest_controller.configfile import API_VERSION, KIND
from nodeattest_controller.model.webhook_configuration import LABEL
from nodeattest_discovery.pins import pin_of
from nodeattest_providers.identifiers import ANNOTATION_PROVIDER_ID
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, text_at
from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.definitions import small_definition

_MANIFESTS: Final = Path(__file__).parents[2] / "manifests"
_ATTESTOR: Final = "attestation.cluster.x-k8s.io/attestor"
_NUMBERS: Final = count(11)


def _documents() -> dict[str, str]:
    documents = Path(__file__).with_name("providers.yaml").read_text().split("\n---\n")[1:]
    return {document.partition("provider: ")[2].partition("\n")[0]: document for document in documents}


PROVIDERS: Final = _documents()
"""The rows as texts, by the providers' names."""


class ProviderWorld(World):
    """A management cluster with Cluster API's own kinds, and a workload cluster."""

    def __init__(self, directory: Path, management: ControlPlane, workload: ControlPlane, definitions: Path) -> None:
        (port,) = free_ports(1)
        self.webhook = WebhookWorld(management, directory, "v1beta2", port)
        self.webhook.install(definitions)
        for group in ("metal3", "tinkerbell"):
            self.webhook.kubectl("apply", "-k", str(_MANIFESTS / f"host-objects-{group}"))
        self._policy: Mapping[str, JsonValue] = {}
        super().__init__(directory, management, workload)

    def definitions(self) -> list[JsonMap]:
        """Return the kinds of the infrastructure providers; our own are installed as they are shipped."""
        described = [yaml.safe_load(Template(document).substitute(_Anything())) for document in PROVIDERS.values()]
        kinds = {_kind(row[role]) for row in described for role in ("infra", "host") if role in row}
        return [_definition(kind) for kind in kinds]

    def make_cluster(self) -> JsonMap:
        label: JsonMap = {"metadata": {"name": NAMESPACE, "labels": {LABEL: "enabled"}}}
        self.admin.create("/api/v1/namespaces", label)
        spec: JsonMap = {
            "controlPlaneRef": {
                "apiGroup": "controlplane.cluster.x-k8s.io",
                "kind": "KubeadmControlPlane",
                "name": "cp",
            },
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevCluster", "name": "c1"},
        }
        return fleet.create_cluster(
            self.admin,
            CLUSTER,
            namespace=NAMESPACE,
            kubeconfig=self.workload.admin_kubeconfig.read_bytes(),
            ca_certificate=self.workload.ca_certificate.read_bytes(),
            ca_key=self.workload.ca_key.read_bytes(),
            spec=spec,
            contract="v1beta2",
        )

    @contextmanager
    def served(self, platforms: JsonMap) -> Generator[Controller]:
        """Run the controller as its service account, with the rights of the manifests."""
        settings = self.directory / "controller.yaml"
        head = {"apiVersion": API_VERSION, "kind": KIND}
        settings.write_text(yaml.safe_dump({**head, "platforms": platforms}))
        flags = ["--config", str(settings), "--webhook-bind-address", f"127.0.0.1:{self.webhook.port}"]
        flags += ["--webhook-cert-dir", str(self.webhook.certificates)]
        flags += ["--leader-elect", "false", "--controllers=*,bootstrap-signer,token-cleaner"]
        with self.controller(*flags, kubeconfig=self.webhook.account()) as running:
            self.webhook.await_called()
            self.await_service(running)
            operate(self, "cluster-info", "publish", "--replace")
            yield running

    def require(self, policy: Mapping[str, JsonValue]) -> None:
        """Make this the cluster's policy, and wait until the controller goes by it."""
        if policy != self._policy:
            self.set_policy(tokenBinding="Required", **policy)
            self.await_policy()
            self._policy = policy


class _Anything(dict[str, str]):
    """A value for every variable."""

    def __missing__(self, key: str) -> str:
        return "0"


def _kind(described: Mapping[str, str]) -> Kind:
    group, _, version = described["apiVersion"].partition("/")
    return Kind(group, described["plural"], described["kind"], version)


def _reference(group: str, kind: str, name: str) -> JsonMap:
    return {"apiGroup": group, "kind": kind, "name": name}


def _definition(kind: Kind) -> JsonMap:
    contract = f"cluster.x-k8s.io/{'v1beta2' if kind.version == 'v1beta2' else 'v1beta1'}"
    labels: JsonMap = {contract: kind.version} if kind.group.startswith("infrastructure.") else {}
    return small_definition(kind.group, kind.plural, kind.kind, [kind.version], labels=labels)


@dataclass
class ProviderMachine:
    """A Machine of a provider with everything that belongs to it."""

    world: ProviderWorld
    clouds: CloudInstances
    provider: str
    name: str
    token: str = ""
    uid: str = ""
    number: int = field(default_factory=lambda: next(_NUMBERS))
    _guest: Guest | None = None
    _written: set[tuple[Kind, str]] = field(default_factory=set[tuple[Kind, str]])

    @property
    def row(self) -> Any:
        """The provider's row with the values of this machine."""
        return yaml.safe_load(Template(PROVIDERS[self.provider]).substitute(self._values()))

    @cached_property
    def attestor(self) -> str:
        return PROVIDERS[self.provider].partition("attestor: ")[2].partition("\n")[0]

    @cached_property
    def node(self) -> str:
        return str(self.row["expect"]["node"])

    @property
    def provider_id(self) -> str:
        """The ID in the machine's record, which must be the expected one."""
        return text_at(self.world.ledger(self.name), "spec", "providerID")

    @cached_property
    def expected(self) -> str:
        """The provider ID, perhaps with a final asterisk."""
        return str(self.row["expect"]["providerID"])

    @cached_property
    def instance(self) -> Instance:
        return self.clouds.launch(self.attestor, self.name)

    @cached_property
    def secret_file(self) -> Path:
        """The machine's own secret, where its image has it; the Secret has the same."""
        path = self.world.directory / f"{self.name}.secret"
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_hex(32).encode())
        self._keep_secret(f"{self.name}-attestation", {"secret": path.read_bytes()})
        return path

    @property
    def guest(self) -> Guest:
        assert self._guest is not None
        return self._guest

    def create(self) -> None:
        """Make what a MachineSet clones, what the provider writes at once, and what the bootstrap provider makes."""
        row = self.row
        self.step("created")
        registration = {"nodeRegistration": _registration(row["template"])}
        config = made(CONFIG, self.name, CLUSTER, {"joinConfiguration": registration})
        agents_own = {ANNOTATION_PROVIDER_ID: row["providerID"]} if "providerID" in row else {}
        config["metadata"]["annotations"] = {_ATTESTOR: self.attestor, **agents_own}
        self._create(CONFIG, config)
        infra = _kind(row["infra"])
        self.uid = text_at(self.world.admin.get(infra.path(NAMESPACE, self.name)), "metadata", "uid")
        references: Object = {
            "clusterName": CLUSTER,
            "bootstrap": {"configRef": _reference(CONFIG.group, CONFIG.kind, self.name)},
            "infrastructureRef": _reference(infra.group, infra.kind, self.name),
        }
        machine = self._create(MACHINE, made(MACHINE, self.name, CLUSTER, references))
        for kind in (CONFIG, infra):
            self._patch(kind, {"metadata": {"ownerReferences": [owner(machine)]}})
        self._bootstrap()

    def step(self, name: str) -> None:
        """Write what the provider writes in this step, then what Cluster API makes of it."""
        row = self.row
        for change in row.get(name) or ():
            for role, content in change.items():
                self._write(_kind(row[role]), self.name if role == "infra" else row[role]["name"], content)
        if name != "created":
            self._copy(_kind(row["infra"]))

    def boot(self) -> None:
        """Start the machine by what is stored in its bootstrap configuration."""
        row, spec = self.row, self._read(CONFIG)["spec"]
        known = row["guest"]
        configuration = dict(spec["joinConfiguration"])
        text = join_configuration(configuration.pop("discovery"), **configuration)
        for placeholder, value in row.get("replaced", {}).items():
            text = text.replace(placeholder, value)
        self._guest = Guest(
            folder=self.world.directory / "guests" / self.name,
            hostname=known["hostname"],
            agent_flags=self._proof_flags(),
            dmi=known.get("dmi", {}),
            instance_data=known.get("instanceData", {}),
        )
        self._guest.boot(spec, text)

    def stop(self) -> None:
        """Switch it off."""
        if self._guest is not None:
            self._guest.stop()

    def becomes_node(self) -> None:
        """Register the Node as its kubelet does, and let provider and Cluster API see it."""
        node: JsonMap = {"metadata": {"name": self.node, "labels": self.row.get("nodeLabels", {})}}
        self.world.workload_admin.create("/api/v1/nodes", node)
        self.step("joined")
        self.world.workload_admin.patch(f"/api/v1/nodes/{self.node}", {"spec": {"providerID": self.provider_id}})
        self._patch(MACHINE, {"status": {"nodeRef": {"name": self.node}}}, "status")

    def has_provider_id(self) -> bool:
        """Tell whether Cluster API has set it on the Machine yet."""
        return bool(self._read(MACHINE)["spec"].get("providerID"))

    def claimed_by(self, thief: ProviderMachine, *, proofs: ProviderMachine) -> Agent:
        """Make an agent of another machine that claims to be this one, with these proofs."""
        return self.world.agent(
            self.node,
            self.attestor,
            directory=f"{self.name}-by-{thief.name}-{proofs.name}",
            provider_id=self.expected.replace("*", "stolen"),
            **proofs.proof_settings(),
        )

    def proof_settings(self) -> dict[str, str]:
        """Return the agent's settings that say where the machine's proofs are."""
        settings: dict[str, Callable[[], dict[str, str]]] = {
            "tpm": lambda: {"tcti": self.world.tpm(self.name).tcti},
            "challenge": lambda: {"secretFile": str(self.secret_file)},
            **{cloud: lambda: dict(self.instance.settings) for cloud in CLOUDS},
        }
        return settings[self.attestor]()

    def _proof_flags(self) -> tuple[str, ...]:
        return tuple(word for key, value in self.proof_settings().items() for word in ("--set", f"{key}={value}"))

    def _values(self) -> dict[str, str]:
        uuid = uuid5(NAMESPACE_URL, self.name)
        document = PROVIDERS[self.provider]
        values = {
            "name": self.name,
            "namespace": NAMESPACE,
            "host": f"rack-{self.number}",
            "number": str(self.number),
            "uuid": str(uuid),
            "vmware": _vmware(uuid),
            "address": f"10.0.0.{self.number}",
            "uid": self.uid,
        }
        if "$ek" in document:
            values["ek"] = self.world.tpm(self.name).endorsement_fingerprint()
        if "$authority" in document:
            values["authority"] = json.dumps(self.world.tpm(self.name).authority_pem)
        if self.attestor in CLOUDS:
            values |= {"cloud": self.instance.provider_id, "dns": self.instance.dns}
        return values

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
        self._keep_secret(name, {"value": b"#cloud-config\n"})
        done = {"dataSecretName": name, "initialization": {"dataSecretCreated": True}}
        self._patch(CONFIG, {"status": done}, "status")
        self._patch(MACHINE, {"spec": {"bootstrap": {"dataSecretName": name}}})
        self._patch(MACHINE, {"status": {"initialization": {"bootstrapDataSecretCreated": True}}}, "status")
        self.world.workload.await_token(token)
        await_signature(self.world, token.partition(".")[0])

    def _copy(self, infra: Kind) -> None:
        """Copy what a provisioned infrastructure machine says, as the Machine controller does."""
        found = self._read(infra)
        provider_id, status = found["spec"].get("providerID"), found.get("status", {})
        if provider_id and (status.get("ready") or status.get("initialization", {}).get("provisioned")):
            self._patch(MACHINE, {"spec": {"providerID": provider_id}})
            done = {"addresses": status.get("addresses", []), "initialization": {"infrastructureProvisioned": True}}
            self._patch(MACHINE, {"status": done}, "status")

    def _write(self, kind: Kind, name: str, content: Object) -> None:
        if (kind, name) not in self._written:
            value = made(kind, name, CLUSTER, content.get("spec", {}), **content.get("metadata", {}))
            self._create(kind, value)
            self._written.add((kind, name))
        elif content.keys() - {"status"}:
            self._patch(kind, {key: value for key, value in content.items() if key != "status"}, name=name)
        if "status" in content:
            self._patch(kind, {"status": content["status"]}, "status", name=name)

    def _keep_secret(self, name: str, data: Mapping[str, bytes]) -> None:
        body = cast("JsonMap", secret(name, CLUSTER, data))
        self.world.admin.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)

    def _create(self, kind: Kind, value: Object) -> Object:
        return cast("Object", self.world.admin.create(kind.path(NAMESPACE), cast("JsonMap", value)))

    def _read(self, kind: Kind) -> Object:
        return cast("Object", self.world.admin.get(kind.path(NAMESPACE, self.name)))

    def _patch(self, kind: Kind, patch: Object, subresource: str = "", *, name: str = "") -> None:
        self.world.admin.patch(kind.path(NAMESPACE, name or self.name, subresource), cast("JsonMap", patch))


def _registration(template: Mapping[str, str]) -> Object:
    """Write nodeRegistration as a user does for this provider."""
    found: Object = {"name": template["name"]} if "name" in template else {}
    if "providerID" in template:
        found["kubeletExtraArgs"] = [{"name": "provider-id", "value": template["providerID"]}]
    return found


def _vmware(uuid: UUID) -> str:
    """Write a BIOS UUID as VMware's serial number."""
    octets = [f"{octet:02x}" for octet in uuid.bytes]
    return f"VMware-{' '.join(octets[:8])}-{' '.join(octets[8:])}"
