"""What an operator installs in the management cluster, and looks at."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Final, cast

import cert_manager
import yaml
from oci_container import Container, account_files, unpack
from polling import eventually, succeeds
from steps import ARCHITECTURE, NODEATTEST, expect, run

from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, items_at, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.definitions import install_definitions

ADDRESS: Final = "192.0.2.10"
"""Of the controller's Pod: documentation network (RFC 5737), on the loopback interface."""
NAMESPACE: Final = "fleet"
CLUSTER: Final = "blue"
_NAME: Final = "node-attestation-controller"
_SYSTEM: Final = "nodeattest-system"
_SERVICE: Final = "nodeattest-webhook"
_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/nodeattest-bootstrap-config"
_OWN: Final = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}"
_LABEL: Final = "attestation.cluster.x-k8s.io/bootstrap-config=enabled"
_SECONDS: Final = 60.0


class Installation:
    """Management and workload cluster; the controller is a container of the release's image."""

    def __init__(self, management: ControlPlane, workload: ControlPlane, work: Path) -> None:
        self.management = management
        self.workload = workload
        self.admin = management.client()
        self.access = ("--kubeconfig", str(management.admin_kubeconfig), "-n", NAMESPACE)
        self.cluster: JsonMap = {}
        self._work = work
        self._policy = work / "policy.yaml"
        self._certificate = work / "certificate"
        self._containers: list[tuple[Container, subprocess.Popen[bytes]]] = []

    def kubectl(self, *words: str, given: str = "") -> str:
        """Run kubectl as the management cluster's administrator."""
        return run("/srv/assets/kubectl", f"--kubeconfig={self.management.admin_kubeconfig}", *words, given=given)

    def apply_manifests(self, release: Path) -> None:
        """Apply the release's components with the image's name as clusterctl would write it."""
        [components] = release.glob("addon-nodeattest/*/addon-components.yaml")
        documents = [cast("JsonMap", one) for one in yaml.safe_load_all(components.read_text()) if one]
        for one in documents:
            if one["kind"] == "Deployment":  # the API servers are on this machine
                [manager] = maps_at(one, "spec", "template", "spec", "containers")
                manager["args"] = [*items_at(manager, "args"), "--allowed-addresses=127.0.0.0/8"]
        install_definitions(self.admin, cert_manager.DEFINITIONS)
        self.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(documents))
        self._certificate = cert_manager.issue(self.admin, self._work / "certificate")
        for file in self._certificate.glob("tls.*"):
            file.chmod(0o644)  # as kubelet mounts a Secret

    def run_controller(self, release: Path) -> None:
        """Run the image as the Deployment says; one that ran before ends first, as its Pod would."""
        self.stop()
        [archive] = release.glob(f"{_NAME}-*-{ARCHITECTURE}.oci.tar")
        folder = self._work / f"{_NAME}-{release.name}"
        folder.mkdir()
        image = unpack(archive, folder / "image")
        deployment = cast("JsonMap", json.loads(self.kubectl("get", "deployment", _NAME, "-n", _SYSTEM, "-o", "json")))
        server = self.management.server.removeprefix("https://").partition(":")
        running = Container(
            folder / f"{release.name}-{os.environ['RUN']}",
            folder / "image",
            image,
            map_at(deployment, "spec", "template", "spec"),
            environment=[f"KUBERNETES_SERVICE_HOST={server[0]}", f"KUBERNETES_SERVICE_PORT={server[2]}"],
            mounts=[
                account_files(self.admin, self.management.ca_certificate, folder / "account"),
                (self._certificate, "/etc/nodeattest-webhook"),
            ],
        )
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(running.deployed(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._containers.append((running, process))
        try:
            eventually(lambda: process.poll() is not None or _is_ready(), seconds=_SECONDS, what="the controller")
            expect(process.poll() is None, f"the controller ended with {process.poll()}")
            self._route_service()
            succeeds(self._webhook_answers, seconds=_SECONDS)
        except Exception as error:
            raise AssertionError(f"{error}\n{(folder / 'log').read_text()[-3000:]}") from error

    def stop(self) -> None:
        """End the controller as kubelet does, by SIGTERM."""
        while self._containers:
            container, process = self._containers.pop()
            process.terminate()
            try:
                process.wait(30)
            finally:
                container.remove()

    def _route_service(self) -> None:
        """Write what the endpoint controllers of kube-controller-manager write."""
        port = {"name": "webhook", "port": 9443, "protocol": "TCP"}
        head = {"name": _SERVICE, "namespace": _SYSTEM, "labels": {"kubernetes.io/service-name": _SERVICE}}
        endpoints = {"subsets": [{"addresses": [{"ip": ADDRESS}], "ports": [port]}]}
        objects: list[object] = [{"apiVersion": "v1", "kind": "Endpoints", "metadata": head, **endpoints}]
        ready = {"addresses": [ADDRESS], "conditions": {"ready": True}}
        slice_ = {"addressType": "IPv4", "endpoints": [ready], "ports": [port]}
        objects.append({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": head, **slice_})
        self.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def _webhook_answers(self) -> None:
        """Create a KubeadmConfig on trial."""
        [webhook] = maps_at(self.admin.get(_WEBHOOKS), "webhooks")
        assert text_at(webhook, "clientConfig", "caBundle")

    def label_namespace(self) -> None:
        """Say that machines of this namespace are rendered."""
        self.kubectl("create", "namespace", NAMESPACE)
        self.kubectl("label", "namespace", NAMESPACE, _LABEL)

    def apply_policy(self, keys: dict[str, str]) -> None:
        """Write the policy with these endorsement keys by provider ID, check and apply it."""
        registered = [{"providerID": provider_id, "sha256": key} for provider_id, key in keys.items()]
        policy = {
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "NodeAttestationPolicy",
            "metadata": {"name": "metal", "namespace": NAMESPACE},
            "spec": {"authorizedAttestors": ["tpm"], "tpm": {"endorsementKeys": registered}},
        }
        self._policy.write_text(yaml.safe_dump(policy, sort_keys=False))
        run(NODEATTEST, "policy", "check", "-f", self._policy)
        self.kubectl("apply", "-f", str(self._policy))

    def create_cluster(self) -> None:
        """Create the Cluster with the Secrets that Cluster API makes, and wait until automatic approval is closed."""
        run(NODEATTEST, "cluster-info", "publish", "--kubeconfig", str(self.workload.admin_kubeconfig))
        self.cluster = fleet.create_cluster(
            self.admin,
            CLUSTER,
            namespace=NAMESPACE,
            kubeconfig=self.workload.admin_kubeconfig.read_bytes(),
            ca_certificate=self.workload.ca_certificate.read_bytes(),
            ca_key=self.workload.ca_key.read_bytes(),
        )
        path = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/clusters/{CLUSTER}"

        def is_closed() -> bool:
            conditions = maps_at(self.admin.get(path), "status", "conditions")
            return any((one["type"], one["status"]) == ("InTreeApprovalBlocked", "True") for one in conditions)

        eventually(
            is_closed, seconds=_SECONDS, what="InTreeApprovalBlocked", state=lambda: self.admin.get(path)["status"]
        )

    def doctor(self) -> None:
        """Run nodeattest doctor until it is green: what it reads is written by watches that take a moment."""
        succeeds(self._doctor_is_green)

    def _doctor_is_green(self) -> None:
        """Find nothing that fails, and nothing that could not be looked at."""
        command = [NODEATTEST, "doctor", *self.access, "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        findings = maps_at(cast("JsonMap", json.loads(done.stdout)), "findings")
        wrong = [one for one in findings if one["severity"] in {"error", "unknown"}]
        assert (done.returncode, wrong) == (0, []), json.dumps(wrong, indent=1)

    def attestation_of(self, machine: str) -> JsonMap:
        """Return the record of a machine, or an empty object."""
        nothing: JsonMap = {}
        found = self.admin.list(f"{_OWN}/machineattestations")
        return next((one for one in found if text_at(one, "spec", "machineName") == machine), nothing)

    def created(self, group: str, plural: str, body: JsonMap, status: JsonMap | None = None) -> JsonMap:
        """Create an object of Cluster API and write its status, as its controller does; one that is there stays."""
        path = f"/apis/{group}/v1beta1/namespaces/{NAMESPACE}/{plural}"
        name = text_at(body, "metadata", "name")
        self.admin.ensure(path, body)
        made = self.admin.get(f"{path}/{name}")
        return made if status is None else self.admin.patch(f"{path}/{name}/status", {"status": status})

    def bootstrap_token(self, token: str) -> str:
        """Create a bootstrap token of a machine in the workload cluster, as Cluster API does."""
        fleet.create_bootstrap_token(self.workload.client(), token)
        return self.workload.await_token(token)


def _is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"http://{ADDRESS}:9440/readyz", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False
