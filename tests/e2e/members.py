"""A machine: its TPM, its Cluster API objects, and the agent's calls in its own /etc/kubernetes and state folder."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from installation import CLUSTER, NAMESPACE, Installation
from polling import succeeds
from steps import AGENT, StepFailed, expect

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.swtpm import SoftwareTpm

_ENTER: Final = """\
set -e
root=$1; shift
for own in /etc/kubernetes /var/lib/kubelet-authenticator; do
  mkdir -p "$own" "$root$own"
  chmod 0700 "$root$own"
  mount --bind "$root$own" "$own"
done
exec "$@"
"""
_MACHINE_STATUS: Final[JsonMap] = {"phase": "Provisioned", "bootstrapReady": True, "infrastructureReady": True}


class Refused(StepFailed):
    """The machine did not join; the message is the agent's."""


class Member:
    """One machine."""

    def __init__(self, there: Installation, name: str, stack: ExitStack) -> None:
        self.name = name
        self.provider_id = f"metal://rack-1/{name}"
        self._there = there
        self._root = Path("/srv/machines") / name
        self._root.mkdir(parents=True)
        self._tpm = stack.enter_context(SoftwareTpm.create(Path("/srv/tpms"), name=name))

    def endorsement_key(self) -> str:
        """Return what the machine's own command says is to be registered."""
        said = self._run(AGENT, "evidence", "--provider", "tpm", "--set", f"tcti={self._tpm.tcti}")
        expect(said.returncode == 0, said.stderr)
        return text_at(json.loads(said.stdout), "endorsementFingerprint")

    def join(self) -> None:
        """Create the Machine, join with its token, and register the Node with the certificate as kubelet does."""
        there, token = self._there, f"{self.name.replace('-', '')}x.0123456789abcdef"
        succeeds(lambda: self._create(token))
        self._attest("--token-file", self._secret(there.bootstrap_token(token)))
        spec = {"providerID": self.provider_id}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}, "spec": spec}
        kubeconfig = "--kubeconfig=/etc/kubernetes/kubelet.conf"
        (self._root / "node.json").write_text(json.dumps(node))
        created = self._run("/srv/assets/kubectl", kubeconfig, "create", "-f", str(self._root / "node.json"))
        expect(created.returncode == 0, created.stderr)

    def renew(self) -> None:
        """Attest anew by the node's own certificate."""
        before = self._certificates()
        self._attest("--renew")
        expect(self._certificates() == before + 1, f"expected a certificate more than {before} on record")

    def delete(self) -> None:
        """Delete the Machine as an operator does."""
        self._there.kubectl("delete", "machines.cluster.x-k8s.io", self.name, "-n", NAMESPACE)

    def _certificates(self) -> int:
        return len(list(maps_at(self._there.attestation_of(self.name), "spec", "issued")))

    def _attest(self, *words: str) -> None:
        there = self._there
        command = [AGENT, "join", "--server", there.workload.server, "--ca-file", str(there.workload.ca_certificate)]
        command += ["--provider", "tpm", "--tcti", self._tpm.tcti, "--provider-id", self.provider_id]
        command += ["--node-name", self.name, *words]
        done = self._run(*command)
        if done.returncode:
            raise Refused(done.stderr)

    def _secret(self, token: str) -> str:
        file = self._root / "token"
        file.touch(mode=0o600)
        file.write_text(token)
        return str(file)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(self._root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def _create(self, token: str) -> None:
        """Create what Cluster API and its providers make of a MachineDeployment's replica."""
        there = self._there
        labels: JsonMap = {"cluster.x-k8s.io/cluster-name": CLUSTER}
        infrastructure = self._reference("infrastructure.cluster.x-k8s.io", "DevMachine")
        config = self._reference("bootstrap.cluster.x-k8s.io", "KubeadmConfig")
        owned: JsonMap = {"apiVersion": there.cluster["apiVersion"], "kind": "Cluster", "name": CLUSTER}
        owned["uid"] = text_at(there.cluster, "metadata", "uid")
        bootstrap: JsonMap = {"configRef": config, "dataSecretName": f"{self.name}-bootstrap"}
        spec: JsonMap = {"clusterName": CLUSTER, "providerID": self.provider_id, "infrastructureRef": infrastructure}
        metadata: JsonMap = {"name": self.name, "labels": labels, "ownerReferences": [owned]}
        machine: JsonMap = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "metadata": metadata}
        made = there.created(
            "cluster.x-k8s.io", "machines", {**machine, "spec": {**spec, "bootstrap": bootstrap}}, _MACHINE_STATUS
        )
        owner: JsonMap = {key: made[key] for key in ("apiVersion", "kind")}
        owner |= {"name": self.name, "uid": text_at(made, "metadata", "uid"), "controller": True}
        of_machine: JsonMap = {"metadata": {"name": self.name, "labels": labels, "ownerReferences": [owner]}}
        there.created(
            "infrastructure.cluster.x-k8s.io",
            "devmachines",
            {**infrastructure, **of_machine, "spec": {"providerID": self.provider_id}},
        )
        registration: JsonMap = {"kubeletExtraArgs": {"provider-id": self.provider_id}}
        join: JsonMap = {"discovery": {"bootstrapToken": {"token": token}}, "nodeRegistration": registration}
        rendered = there.created(
            "bootstrap.cluster.x-k8s.io",
            "kubeadmconfigs",
            {**config, **of_machine, "spec": {"joinConfiguration": join}},
            {"ready": True, "dataSecretName": f"{self.name}-bootstrap"},
        )
        expect(f"{AGENT} join" in json.dumps(rendered), f"expected that the webhook rendered it, got {rendered}")

    def _reference(self, group: str, kind: str) -> JsonMap:
        return {"apiVersion": f"{group}/v1beta1", "kind": kind, "name": self.name}
