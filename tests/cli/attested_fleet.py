"""One sandbox server as management and workload cluster at once, with machines that have attested."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from nodeattest_controller import manifests
from nodeattest_controller.model.attestation import attestation_name
from nodeattest_parsing.objects import rfc3339
from nodeattest_providers.identifiers import ProviderID
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions

NAMESPACE = "fleet"
OWN = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}"
LEDGERS, POLICIES = f"{OWN}/machineattestations", f"{OWN}/nodeattestationpolicies"
SPKI = "sha256:" + "5" * 64
PINS: JsonMap = {"tpm.ek": "sha256:" + "e" * 64, "tpm.ak": "000b" + "a" * 64}


@dataclass
class AttestedFleet:
    """A namespace with the cluster ``blue``, which is the server itself."""

    plane: ControlPlane
    client: Client
    clusters: dict[str, JsonMap]

    @classmethod
    def build(cls, plane: ControlPlane, *clusters: str) -> AttestedFleet:
        """Install the kinds and create clusters whose kubeconfig leads back to this server."""
        client = plane.client()
        install_cluster_api(client)
        install_definitions(client, cast("list[JsonMap]", manifests.crds()))
        made = {
            name: fleet.create_cluster(
                client,
                name,
                namespace=NAMESPACE,
                kubeconfig=plane.admin_kubeconfig.read_bytes(),
                ca_certificate=plane.ca_certificate.read_bytes(),
                ca_key=None,
            )
            for name in clusters
        }
        return cls(plane, client, made)

    @property
    def access(self) -> list[str]:
        """Return the options of a command."""
        return ["--kubeconfig", str(self.plane.admin_kubeconfig), "-n", NAMESPACE]

    def machine(self, name: str, *, cluster: str = "blue", provider: str = "tpm", issued: bool = True) -> JsonMap:
        """Create a Machine that has attested; returns its ledger."""
        provider_id = f"metal://{cluster}/{name}"
        machine = fleet.create_machine(self.client, name, cluster=self.clusters[cluster], provider_id=provider_id)
        now = datetime.now(UTC)
        entry: JsonMap = {
            "requestName": "r",
            "requestUID": "u",
            "spki": SPKI,
            "serial": "1f",
            "notBefore": rfc3339(now),
            "notAfter": rfc3339(now + timedelta(days=14)),
            "issuedAt": rfc3339(now),
            "certificate": "pem",
        }
        owner: JsonMap = {"apiVersion": text_at(machine.machine, "apiVersion"), "kind": "Machine", "name": name}
        body: JsonMap = {
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "MachineAttestation",
            "metadata": {
                "name": attestation_name(cluster, ProviderID(provider_id)),
                "labels": {"team": "metal"},
                "ownerReferences": [{**owner, "uid": machine.uid}],
            },
            "spec": {
                "clusterName": cluster,
                "machineName": name,
                "providerID": provider_id,
                "nodeName": name,
                "provider": provider,
                "fingerprints": PINS,
                "boot": {"clock": 77, "resetCount": 3},
                "issued": [entry] if issued else [],
                "expires": rfc3339(now + timedelta(days=14)),
            },
        }
        return self.client.create(LEDGERS, body)

    def authorize(self, *attestors: str) -> None:
        """Make a policy of these the only one."""
        for policy in self.client.list(POLICIES):
            self.client.delete(f"{POLICIES}/{text_at(policy, 'metadata', 'name')}")
        self.client.create(POLICIES, {"metadata": {"name": "p"}, "spec": {"authorizedAttestors": [*attestors]}})

    def ledger(self, ledger: JsonMap) -> JsonMap:
        """Read a ledger again."""
        return self.client.get(f"{LEDGERS}/{text_at(ledger, 'metadata', 'name')}")

    def events(self, reason: str) -> list[JsonMap]:
        """Return the Events of a reason."""
        found = self.client.list(f"/api/v1/namespaces/{NAMESPACE}/events")
        return [event for event in found if text_at(event, "reason") == reason]

    def grant(self, user: str, *rules: JsonMap) -> Path:
        """Let a user do this and nothing else; returns the kubeconfig."""
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        api = "rbac.authorization.k8s.io"
        head: JsonMap = {"apiVersion": f"{api}/v1", "metadata": {"name": user}}
        self.client.create(f"{rbac}/clusterroles", {**head, "kind": "ClusterRole", "rules": [*rules]})
        binding: JsonMap = {
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": api, "kind": "User", "name": user}],
        }
        self.client.create(f"{rbac}/clusterrolebindings", {**head, **binding, "kind": "ClusterRoleBinding"})
        return self.plane.client_kubeconfig(user)

    def spec(self, ledger: JsonMap) -> JsonMap:
        """Read a ledger's spec again."""
        return map_at(self.ledger(ledger), "spec")
