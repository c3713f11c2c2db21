"""kubeadm's automatic approval in a workload cluster: made by kubeadm itself where it is at hand, and seen in use."""

from __future__ import annotations

from contextlib import suppress
from typing import Final
from uuid import uuid4

from apiserver_kit import bind, csr_object
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes_assets import cluster_configuration
from needs import kubernetes_folder
from world import CLUSTER, CSRS, NAMESPACE, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import kubeadm

BINDINGS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
CLUSTERS: Final = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/clusters/{CLUSTER}"
BOOTSTRAP: Final = "kubeadm:node-autoapprove-bootstrap"
ROTATION: Final = "kubeadm:node-autoapprove-certificate-rotation"
ROLE: Final = "system:certificates.k8s.io:certificatesigningrequests"


def make_bindings(world: World, *, real: bool) -> None:
    """Let kubeadm make its bindings and cluster-info, or make them as it does."""
    if real:
        assets, config = kubernetes_folder(), world.directory / "kubeadm.yaml"
        config.write_text(cluster_configuration(assets), encoding="ascii")
        access = ["--kubeconfig", str(world.workload.admin_kubeconfig), "--config", str(config)]
        done = kubeadm(assets, "init", "phase", "bootstrap-token", *access)
        assert done.returncode == 0, done.stderr
        return
    admin = world.workload_admin
    with suppress(ApiRefusal):
        bind(admin, BOOTSTRAP, f"{ROLE}:nodeclient", "Group", "system:bootstrappers:kubeadm:default-node-token")
    with suppress(ApiRefusal):
        bind(admin, ROTATION, f"{ROLE}:selfnodeclient", "Group", "system:nodes")
    body: JsonMap = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "cluster-info"}, "data": {}}
    with suppress(ApiRefusal):
        admin.create("/api/v1/namespaces/kube-public/configmaps", body)


def binding_names(world: World) -> set[str]:
    """Return the names of all ClusterRoleBindings."""
    return {text_at(one, "metadata", "name") for one in world.workload_admin.list(BINDINGS)}


def condition(world: World) -> JsonMap:
    """Return the Cluster's condition, or an empty object."""
    conditions = maps_at(world.admin.get(CLUSTERS), "status", "conditions")
    nothing: JsonMap = {}
    return next((one for one in conditions if text_at(one, "type") == "InTreeApprovalBlocked"), nothing)


def nudge(world: World) -> None:
    """Have the cluster audited soon: change the Cluster."""
    world.admin.patch(CLUSTERS, {"metadata": {"annotations": {"tests/nudged": uuid4().hex}}})


def register_node(world: World, name: str, provider_id: str = "") -> JsonMap:
    """Register a Node as kubelet does, without ``--provider-id`` too."""
    body: JsonMap = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"providerID": provider_id} if provider_id else {},
    }
    return world.workload_admin.create("/api/v1/nodes", body)


def file_in_tree(client: Client, node: str, key: ec.EllipticCurvePrivateKey | None = None) -> str:
    """File a request with the in-tree signer, as kubelet does; returns its name."""
    name = f"in-tree-{uuid4().hex[:10]}"
    client.create(CSRS, csr_object(name, node=node, key=key, signerName="kubernetes.io/kube-apiserver-client-kubelet"))
    return name
