"""The kinds of Cluster API's contract v1beta2 that these tests speak of, and how their objects refer to each other.

Source: cluster-api api/core/v1beta2, and the book's provider contracts.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

CLUSTER_LABEL: Final = "cluster.x-k8s.io/cluster-name"


@dataclass(frozen=True, slots=True)
class Kind:
    """A namespaced kind and where its objects are."""

    group: str
    plural: str
    kind: str
    version: str = "v1beta2"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the path of the collection, of an object or of its subresource."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        parts = [root, "namespaces", namespace, self.plural, name, subresource]
        return "/".join(part for part in parts if part)


CLUSTER: Final = Kind("cluster.x-k8s.io", "clusters", "Cluster")
MACHINE: Final = Kind("cluster.x-k8s.io", "machines", "Machine")
DEPLOYMENT: Final = Kind("cluster.x-k8s.io", "machinedeployments", "MachineDeployment")
POOL: Final = Kind("cluster.x-k8s.io", "machinepools", "MachinePool")
HEALTH_CHECK: Final = Kind("cluster.x-k8s.io", "machinehealthchecks", "MachineHealthCheck")
CONFIG: Final = Kind("bootstrap.cluster.x-k8s.io", "kubeadmconfigs", "KubeadmConfig")
CONFIG_TEMPLATE: Final = Kind("bootstrap.cluster.x-k8s.io", "kubeadmconfigtemplates", "KubeadmConfigTemplate")
CONTROL_PLANE: Final = Kind("controlplane.cluster.x-k8s.io", "kubeadmcontrolplanes", "KubeadmControlPlane")
CLUSTER_CLASS: Final = Kind("cluster.x-k8s.io", "clusterclasses", "ClusterClass")
CONTROL_PLANE_TEMPLATE: Final = Kind(
    "controlplane.cluster.x-k8s.io", "kubeadmcontrolplanetemplates", "KubeadmControlPlaneTemplate"
)
PROCESS_CLUSTER: Final = Kind("infrastructure.cluster.x-k8s.io", "processclusters", "ProcessCluster")
PROCESS_CLUSTER_TEMPLATE: Final = Kind(
    "infrastructure.cluster.x-k8s.io", "processclustertemplates", "ProcessClusterTemplate"
)
PROCESS_MACHINE: Final = Kind("infrastructure.cluster.x-k8s.io", "processmachines", "ProcessMachine")
PROCESS_TEMPLATE: Final = Kind("infrastructure.cluster.x-k8s.io", "processmachinetemplates", "ProcessMachineTemplate")
PROCESS_POOL: Final = Kind("infrastructure.cluster.x-k8s.io", "processmachinepools", "ProcessMachinePool")
SECRET: Final = Kind("", "secrets", "Secret", "v1")
KINDS: Final = {
    each.kind: each
    for each in (
        CLUSTER, CLUSTER_CLASS, MACHINE, DEPLOYMENT, POOL, HEALTH_CHECK, CONFIG, CONFIG_TEMPLATE,
        CONTROL_PLANE, CONTROL_PLANE_TEMPLATE, PROCESS_CLUSTER, PROCESS_CLUSTER_TEMPLATE, PROCESS_MACHINE,
        PROCESS_TEMPLATE, PROCESS_POOL, SECRET,
    )
}  # fmt: skip


def made(kind: Kind, name: str, cluster: str, spec: Object, **metadata: Any) -> Object:
    labels = {CLUSTER_LABEL: cluster, **metadata.pop("labels", {})}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "labels": labels, **metadata},
        "spec": spec,
    }


def secret(name: str, cluster: str, data: Mapping[str, bytes], **metadata: Any) -> Object:
    """Make a Secret of Cluster API's."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "cluster.x-k8s.io/secret",
        "metadata": {"name": name, "labels": {CLUSTER_LABEL: cluster}, **metadata},
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def owner(value: Object, *, controller: bool = True) -> Object:
    """Refer to an owner."""
    metadata = value["metadata"]
    found = {"apiVersion": value["apiVersion"], "kind": value["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**found, "controller": True, "blockOwnerDeletion": True} if controller else found


def controller_of(value: Object) -> Object:
    """Return the reference to the controlling owner, or an empty object."""
    owners: list[Object] = value["metadata"].get("ownerReferences", [])
    nobody: Object = {}
    return next((each for each in owners if each.get("controller")), nobody)


def owner_of(value: Object, kind: Kind) -> Object:
    """Return the reference to an owner of a kind, or an empty object."""
    owners: list[Object] = value["metadata"].get("ownerReferences", [])
    nobody: Object = {}
    return next((each for each in owners if each["kind"] == kind.kind), nobody)


def name_of(value: Object) -> str:
    return str(value["metadata"]["name"])


def condition(value: Object, kind: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition."""
    for entry in value.get("status", {}).get("conditions", []):
        if entry["type"] == kind:
            return entry["status"], entry.get("reason", ""), entry.get("message", "")
    return "", "", ""


def has_condition(value: Object, kind: str, status: str = "True") -> bool:
    return condition(value, kind)[0] == status
