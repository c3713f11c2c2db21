"""What stands before nodeattest comes: Cluster API's real CRDs, two real control planes, and those who act in them.

Cluster API's controllers are not here; what they would write, at the moment they would, is written by ``Actors``: the
MachineSet's KubeadmConfig, the bootstrap provider's token and JoinConfiguration, the infrastructure provider's Machine.
"""

from __future__ import annotations

import base64
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.definitions import install_definitions
from nodeattest_sandbox.kubernetes_binaries import controller_manager, kubeadm

__all__ = ["ACCOUNT", "CLUSTER", "NAMESPACE", "Scene", "prepare_management", "prepare_workload"]

ROOT: Final = Path(__file__).parents[2]
MANIFESTS: Final = ROOT / "manifests"
ACCOUNT: Final = "node-attestation-controller"
NAMESPACE: Final = "fleet"
CLUSTER: Final = "blue"
CORE: Final = "/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet"
BOOTSTRAP: Final = "/apis/bootstrap.cluster.x-k8s.io/v1beta2/namespaces/fleet"
INFRASTRUCTURE: Final = "/apis/infrastructure.cluster.x-k8s.io/v1beta2/namespaces/fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Two real control planes with what an operator applied."""

    assets: Path
    directory: Path
    management: ControlPlane
    workload: ControlPlane

    @property
    def here(self) -> Client:
        """The management cluster's administrator."""
        return self.management.client()

    @property
    def there(self) -> Client:
        """The workload cluster's administrator."""
        return self.workload.client()


def kubectl(scene: Scene, plane: ControlPlane, *words: str, given: str = "") -> str:
    """Run the real kubectl as an administrator."""
    command = [str(scene.assets / "kubectl"), f"--kubeconfig={plane.admin_kubeconfig}"]
    command += [f"--cache-dir={scene.directory / 'kubectl-cache'}", *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prepare_management(scene: Scene, crds: Path, stack: ExitStack) -> Path:
    """Install Cluster API's CRDs and, by kubectl, what we ship; returns the controller's kubeconfig.

    Deployment and disruption budget stay out: no kubelet runs here, and 1.20 does not know policy/v1.
    """
    install_definitions(scene.here, crds)
    stack.enter_context(controller_manager(scene.management, scene.assets, ("garbagecollector",)))
    kubectl(scene, scene.management, "apply", "-f", str(MANIFESTS / "default" / "namespace.yaml"))
    # infrastructure-annotations: Cluster API's development provider prunes the status fields of the proposal.
    for folder in ("crd", "rbac", "infrastructure-annotations", "webhook"):
        # kubectl 1.20 knows no CEL rules, and would refuse them by itself.
        kubectl(scene, scene.management, "apply", "--validate=false", "-k", str(MANIFESTS / folder))
    kubectl(scene, scene.management, "create", "namespace", NAMESPACE)
    return account_kubeconfig(scene.management, "nodeattest-system")


def prepare_workload(scene: Scene, stack: ExitStack, *folders: str) -> Path:
    """Make it what ``kubeadm init`` leaves, apply our rights there; returns the controller's kubeconfig for it."""
    stack.enter_context(controller_manager(scene.workload, scene.assets, ("bootstrapsigner", "tokencleaner")))
    done = kubeadm(
        scene.assets, "init", "phase", "bootstrap-token", f"--kubeconfig={scene.workload.admin_kubeconfig}",
        "--skip-token-print",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for folder in ("workload-rbac", *folders):
        kubectl(scene, scene.workload, "apply", "-k", str(MANIFESTS / folder))
    return account_kubeconfig(scene.workload, "kube-system")


def account_kubeconfig(plane: ControlPlane, namespace: str) -> Path:
    """Make a kubeconfig of our service account: the rights of the manifests and no others."""
    asked: JsonMap = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token"
    return plane.token_kubeconfig(text_at(plane.client().create(path, asked), "status", "token"))


def owner(value: JsonMap) -> JsonMap:
    """Refer to an owner."""
    return {
        "apiVersion": text_at(value, "apiVersion"),
        "kind": text_at(value, "kind"),
        "name": text_at(value, "metadata", "name"),
        "uid": text_at(value, "metadata", "uid"),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def secret(name: str, data: dict[str, bytes], kind: str = "cluster.x-k8s.io/secret") -> JsonMap:
    """Make a Secret of Cluster API's."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": CLUSTER}},
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def create_cluster(scene: Scene, kubeconfig: Path) -> JsonMap:
    """Create Cluster, DevCluster and the Secrets that Cluster API keeps beside them."""
    labels: JsonMap = {"cluster.x-k8s.io/cluster-name": CLUSTER}
    spec: JsonMap = {
        "infrastructureRef": {
            "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevCluster", "name": CLUSTER
        },
        "controlPlaneEndpoint": {"host": "127.0.0.1", "port": int(scene.workload.server.rpartition(":")[2])},
    }  # fmt: skip
    cluster = scene.here.create(
        f"{CORE}/clusters",
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": {"name": CLUSTER, "labels": labels},
            "spec": spec,
        },
    )
    scene.here.create(
        f"{INFRASTRUCTURE}/devclusters",
        {
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
            "kind": "DevCluster",
            "metadata": {"name": CLUSTER, "labels": labels, "ownerReferences": [owner(cluster)]},
            "spec": {"backend": {"inMemory": {}}},
        },
    )
    authority = {"tls.crt": scene.workload.ca_certificate.read_bytes(), "tls.key": scene.workload.ca_key.read_bytes()}
    for made in (
        secret(f"{CLUSTER}-kubeconfig", {"value": kubeconfig.read_bytes()}),
        secret(f"{CLUSTER}-ca", authority),
    ):
        scene.here.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", made)
    status: JsonMap = {"initialization": {"infrastructureProvisioned": True, "controlPlaneInitialized": True}}
    return scene.here.patch(f"{CORE}/clusters/{CLUSTER}/status", {"status": status})


def condition(value: JsonMap, kind: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition."""
    found: JsonValue = map_at(value, "status").get("conditions")
    for entry in found if isinstance(found, list) else []:
        if text_at(entry, "type") == kind:
            return text_at(entry, "status"), text_at(entry, "reason"), text_at(entry, "message")
    return "", "", ""
