"""A real API server with Cluster API's own CRDs in one version, our manifests, and replicas of the webhook."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import textwrap
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import yaml
from cert_manager import CONFIGURATIONS, serving_files
from polling import eventually
from world import Controller

from nodeattest_controller import manifests
from nodeattest_controller.configfile import API_VERSION, KIND
from nodeattest_controller.model.webhook_configuration import LABEL
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.definitions import install_definitions
from nodeattest_sandbox.pki import ClusterPki

TREE: Final = Path(manifests.__file__).parents[2] / "manifests"
NAMESPACE: Final = "team-a"
CONFIGURATION: Final = CONFIGURATIONS[0]
POLICIES: Final = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/nodeattestationpolicies"
_NEEDED: Final = {
    *("clusters", "kubeadmconfigs", "kubeadmconfigtemplates", "kubeadmcontrolplanes"),
    *("machinedeployments", "machinepools", "machines", "machinesets"),
}
_TOKEN: Final = "/api/v1/namespaces/nodeattest-system/serviceaccounts/node-attestation-controller/token"
_PROVIDER_ID: Final = "metal://{{ ds.meta_data.instance_id }}"


class ClientCertificates:
    """What an API server shows to webhooks, by the two files of docs/bootstrap-config.md."""

    def __init__(self, directory: Path, port: int) -> None:
        self._port = port
        pki = ClusterPki.make(directory / "clients", "webhook clients")
        self.ca, self._directory = pki.ca_certificate, directory
        made = pki.client_kubeconfig(directory / "client.kubeconfig", "https://127.0.0.1", "kube-apiserver", [])
        [entry] = yaml.safe_load(made.read_text())["users"]
        self._certificate, self._key = directory / "client.crt", directory / "client.key"
        self._certificate.write_bytes(base64.b64decode(entry["user"]["client-certificate-data"]))
        self._key.write_bytes(base64.b64decode(entry["user"]["client-key-data"]))

    def apiserver_flags(self) -> list[str]:
        """Write the files as the page has them, with paths and host of here."""
        page = (TREE.parent / "docs" / "bootstrap-config.md").read_text()
        shown: list[str] = re.findall(r"^   ```yaml\n(.*?)^   ```", page, re.DOTALL | re.MULTILINE)
        blocks = [textwrap.dedent(block) for block in shown]
        [plugins] = [block for block in blocks if "kind: AdmissionConfiguration" in block]
        [users] = [block for block in blocks if "kind: Config" in block]
        paths = {
            "/etc/kubernetes/webhook-clients.yaml": self._directory / "webhook-clients.yaml",
            "/etc/kubernetes/pki/webhook-client.crt": self._certificate,
            "/etc/kubernetes/pki/webhook-client.key": self._key,
            "nodeattest-webhook.nodeattest-system.svc": f"127.0.0.1:{self._port}",
        }
        for there, here in paths.items():
            assert there in plugins + users
            plugins, users = plugins.replace(there, str(here)), users.replace(there, str(here))
        (self._directory / "webhook-clients.yaml").write_text(users)
        (self._directory / "admission.yaml").write_text(plugins)
        return [f"--admission-control-config-file={self._directory / 'admission.yaml'}"]


@dataclass
class WebhookWorld:
    """One management cluster."""

    plane: ControlPlane
    directory: Path
    version: str
    port: int
    clients: ClientCertificates | None = None
    """None: callers are not verified."""

    def install(self, definitions: Path) -> None:
        """Install Cluster API's CRDs, our manifests by kubectl, and a policy for clusters with the label env=prod."""
        client = self.client
        install_definitions(client, list(self.in_version(definitions)))
        self.kubectl("apply", "-f", str(TREE / "base" / "namespace.yaml"))
        for base in ("crd", "rbac", "webhook"):
            self.kubectl("apply", "-k", str(TREE / base))
        eventually(self._knows_policies, what="our kinds")
        client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": {LABEL: "enabled"}}})
        self.renew_certificate()

    def renew_certificate(self) -> None:
        """Give the webhook a certificate of a new CA, as cert-manager does."""
        serving_files(self.certificates, self.client, url=f"https://127.0.0.1:{self.port}")

    @property
    def certificates(self) -> Path:
        """The folder of the webhook's certificate."""
        return self.directory / "certificates"

    @property
    def client(self) -> Client:
        """The administrator."""
        return self.plane.client()

    def kubectl(self, *words: str, body: JsonMap | None = None) -> str:
        """Run kubectl as the administrator, with an object on its standard input; returns what it warns of."""
        assert self.plane.kubectl is not None
        command = [str(self.plane.kubectl), "--kubeconfig", str(self.plane.admin_kubeconfig), *words]
        given = None if body is None else json.dumps(body)
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def replica(self, name: str, *, more: Iterable[str] = ()) -> Controller:
        """A controller as its service account, with the rights of the manifests and no others."""
        settings = self.directory / f"{name}.yaml"
        content: dict[str, object] = {"apiVersion": API_VERSION, "kind": KIND}
        if self.clients is not None:
            content |= {"webhookClientCAFile": str(self.clients.ca), "webhookClientNames": ["kube-apiserver"]}
        settings.write_text(yaml.safe_dump(content))
        flags = ["--config", str(settings), "--webhook-bind-address", f"127.0.0.1:{self.port}"]
        flags += ["--webhook-cert-dir", str(self.certificates), *more]
        return Controller(self.account(), self.directory / f"{name}.log", flags)

    def account(self) -> Path:
        """Make a kubeconfig of the controller's service account."""
        asked: JsonMap = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return self.plane.token_kubeconfig(text_at(self.client.create(_TOKEN, asked), "status", "token"))

    def await_called(self) -> None:
        """Wait until the API server calls a replica for both configurations."""
        eventually(self._is_called, seconds=60, what="the first calls")

    def path(self, kind: str, name: str = "") -> str:
        """The path of a kind's collection or object."""
        group = {
            "kubeadmconfigs": "bootstrap.cluster.x-k8s.io",
            "kubeadmcontrolplanes": "controlplane.cluster.x-k8s.io",
        }.get(kind, "cluster.x-k8s.io")
        collection = f"/apis/{group}/{self.version}/namespaces/{NAMESPACE}/{kind}"
        return f"{collection}/{name}" if name else collection

    def policy(self, name: str, env: str, /, *, dry_run: bool = False, **spec: JsonValue) -> None:
        """Create a policy for clusters with a label."""
        body: JsonMap = {
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "NodeAttestationPolicy",
            "metadata": {"name": name},
            "spec": {
                "clusterSelector": {"matchLabels": {"env": env}},
                "authorizedAttestors": ["tpm"],
                "serving": {"kubelet": "Approve"},
                **spec,
            },
        }
        self.client.create(POLICIES, body, **({"dryRun": "All"} if dry_run else {}))

    def cluster(self, name: str, env: str) -> JsonMap:
        """Create a Cluster whose control plane is ``<name>-cp``."""
        reference: JsonMap = {"kind": "KubeadmControlPlane", "name": f"{name}-cp"}
        infrastructure: JsonMap = {"kind": "DevCluster", "name": name}
        if self.version == "v1beta2":
            reference["apiGroup"] = "controlplane.cluster.x-k8s.io"
            infrastructure["apiGroup"] = "infrastructure.cluster.x-k8s.io"
        else:
            reference["apiVersion"] = "controlplane.cluster.x-k8s.io/v1beta1"
            infrastructure["apiVersion"] = "infrastructure.cluster.x-k8s.io/v1beta1"
        body: JsonMap = {
            "apiVersion": f"cluster.x-k8s.io/{self.version}",
            "kind": "Cluster",
            "metadata": {"name": name, "labels": {"env": env}},
            "spec": {"controlPlaneRef": reference, "infrastructureRef": infrastructure},
        }
        return self.client.create(self.path("clusters"), body)

    def label(self, value: str | None) -> None:
        """Give the namespace the webhook's label, or take it away; API servers go by the former one for a moment."""
        self.client.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": {LABEL: value}}})

    def config(self, name: str, cluster: str | None = None) -> JsonMap:
        """Make the KubeadmConfig of a worker, as a MachineSet clones it; without a cluster, as a user writes it."""
        labels: JsonMap = {} if cluster is None else {"cluster.x-k8s.io/cluster-name": cluster}
        return {
            "apiVersion": f"bootstrap.cluster.x-k8s.io/{self.version}",
            "kind": "KubeadmConfig",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "preKubeadmCommands": ["echo mine"],
                "joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": self._arguments()}},
            },
        }

    def control_plane(self, name: str) -> JsonMap:
        """Make a KubeadmControlPlane, as a user writes it."""
        infrastructure: JsonMap = {"kind": "DevMachineTemplate", "name": name}
        template: JsonMap = {"infrastructureRef": infrastructure}
        if self.version == "v1beta2":
            infrastructure["apiGroup"] = "infrastructure.cluster.x-k8s.io"
            template = {"spec": template}
        else:
            infrastructure["apiVersion"] = "infrastructure.cluster.x-k8s.io/v1beta1"
        registration: JsonMap = {"nodeRegistration": {"kubeletExtraArgs": self._arguments()}}
        return {
            "apiVersion": f"controlplane.cluster.x-k8s.io/{self.version}",
            "kind": "KubeadmControlPlane",
            "metadata": {"name": name},
            "spec": {
                "version": "v1.34.0",
                "replicas": 3,
                "machineTemplate": template,
                "kubeadmConfigSpec": {
                    "initConfiguration": deepcopy(registration),
                    "joinConfiguration": deepcopy(registration),
                },
            },
        }

    def _arguments(self) -> JsonValue:
        if self.version == "v1beta1":
            return {"provider-id": _PROVIDER_ID}
        return [{"name": "provider-id", "value": _PROVIDER_ID}]

    def in_version(self, definitions: Path) -> Iterable[JsonMap]:
        """Yield Cluster API's CRDs, which serve and store this one version."""
        for file in sorted(definitions.glob("*.yaml")):
            definition = map_at(cast("JsonValue", yaml.safe_load(file.read_text())))
            spec = map_at(definition, "spec")
            if text_at(spec, "names", "plural") in _NEEDED:
                spec.pop("conversion", None)
                for version in maps_at(spec, "versions"):
                    version["served"] = version["storage"] = version["name"] == self.version
                yield definition

    def _knows_policies(self) -> bool:
        try:
            self.client.get(POLICIES)
        except ApiRefusal:
            return False
        return True

    def _is_called(self) -> bool:
        try:
            self.client.create(self.path("kubeadmconfigs"), self.config("probe"), dryRun="All")
        except ApiRefusal:
            return False
        try:
            self.policy("probe", "probe", dry_run=True, unknown="a field")
        except ApiRefusal:
            return True
        return False
