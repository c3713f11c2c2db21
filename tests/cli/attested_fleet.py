"""One sandbox server as management and workload cluster at once, with machines that have attested; and its commands."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from nodeattest_cli.main import main
from nodeattest_controller import manifests
from nodeattest_controller.model.attestation import attestation_name
from nodeattest_discovery import clusterinfo
from nodeattest_parsing.objects import rfc3339
from nodeattest_providers.identifiers import ProviderID
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions

NAMESPACE = "fleet"
OWN = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}"
LEDGERS, POLICIES = f"{OWN}/machineattestations", f"{OWN}/nodeattestationpolicies"
SPKI = "sha256:" + "5" * 64
SECRETS = "/api/v1/namespaces/kube-system/secrets"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public"
ROLE = "kubeadm:bootstrap-signer-clusterinfo"
PINS: JsonMap = {"tpm.ek": "sha256:" + "e" * 64, "tpm.ak": "000b" + "a" * 64}


def attestation(
    machine: str, *, cluster: str = "blue", ends: datetime | None, reason: str = "Attested", **spec: JsonValue
) -> JsonMap:
    """Make the record of a machine with a certificate of two weeks, or with none; ``reason``: of its last verdict."""
    known: JsonMap = {
        "clusterName": cluster,
        "machineName": machine,
        "providerID": f"metal://{cluster}/{machine}",
        "nodeName": machine,
        "provider": "tpm",
    }
    if ends is not None:
        begins = rfc3339(ends - timedelta(days=14))
        entry: JsonMap = {"requestName": "r", "requestUID": "u", "spki": SPKI, "serial": "1f", "certificate": "pem"}
        known["issued"] = [{**entry, "notBefore": begins, "issuedAt": begins, "notAfter": rfc3339(ends)}]
        known["expires"] = rfc3339(ends)
        verdict = "Approved" if reason == "Attested" else "Denied"
        known["lastVerdict"] = {"verdict": verdict, "reason": reason, "time": begins}
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineAttestation",
        "metadata": {"name": attestation_name(cluster, ProviderID(f"metal://{cluster}/{machine}"))},
        "spec": {**known, **spec},
    }


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
        ends = datetime.now(UTC) + timedelta(days=14) if issued else None
        boot: JsonMap = {"clock": 77, "resetCount": 3}
        body = attestation(name, cluster=cluster, ends=ends, provider=provider, fingerprints=PINS, boot=boot)
        owner: JsonMap = {"apiVersion": text_at(machine.machine, "apiVersion"), "kind": "Machine", "name": name}
        more: JsonMap = {"labels": {"team": "metal"}, "ownerReferences": [{**owner, "uid": machine.uid}]}
        body["metadata"] = {**map_at(body, "metadata"), **more}
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


class Tool:
    """Runs commands on one control plane, which has neither tokens nor cluster-info at first."""

    def __init__(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        self.plane, self.client = plane, plane.client()
        self.err = ""
        self._capsys = capsys

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command without a kubeconfig and return standard output."""
        done = main([*words])
        out, self.err = self._capsys.readouterr()
        assert done == code, self.err
        return out

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run it as administrator."""
        return self.run(*words, "--kubeconfig", str(self.plane.admin_kubeconfig), code=code)

    def refuse(self, *words: str, code: int = 2) -> str:
        """Run it, see that it made no token and printed one line, and return that."""
        before = self.tokens()
        assert self(*words, code=code) == ""
        assert self.err.count("\n") == 1
        assert self.tokens() == before
        return self.err

    def tokens(self) -> set[str]:
        """Name the tokens."""
        found = self.client.list(SECRETS, fieldSelector="type=bootstrap.kubernetes.io/token")
        return {text_at(one, "metadata", "name").removeprefix("bootstrap-token-") for one in found}

    def token(self, token_id: str) -> dict[str, str]:
        """Read a token's Secret."""
        stored = map_at(self.client.get(f"{SECRETS}/bootstrap-token-{token_id}"), "data")
        return {key: base64.b64decode(str(value)).decode() for key, value in stored.items()}

    def clear(self) -> None:
        """Delete what may have been made."""
        paths = [clusterinfo.PATH, f"{RBAC}/roles/{ROLE}", f"{RBAC}/rolebindings/{ROLE}"]
        for path in [*paths, *(f"{SECRETS}/bootstrap-token-{one}" for one in self.tokens())]:
            with suppress(ApiRefusal):
                self.client.delete(path)
