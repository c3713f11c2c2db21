"""A gateway's identity at a real kube-apiserver: the shipped rights, and a kubeconfig."""

from __future__ import annotations

from pathlib import Path
from typing import Final, cast

from nodeattest_controller import manifests
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane

RBAC: Final = "rbac.authorization.k8s.io"
PLACES: Final = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": f"/apis/{RBAC}/v1/namespaces/{{namespace}}/roles",
    "RoleBinding": f"/apis/{RBAC}/v1/namespaces/{{namespace}}/rolebindings",
    "ClusterRole": f"/apis/{RBAC}/v1/clusterroles",
    "ClusterRoleBinding": f"/apis/{RBAC}/v1/clusterrolebindings",
}


def token_kubeconfig(plane: ControlPlane, namespace: str, account: str, path: Path) -> Path:
    asked: JsonMap = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = plane.client().create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", asked)
    return plane.pki.token_kubeconfig(path, plane.server, text_at(answer, "status", "token"))


def apply_rights(client: Client) -> None:
    """Apply what the manifests grant, as they are."""
    for document in manifests.objects("addon-gateway"):
        kind = str(document["kind"])
        if kind in PLACES:
            found = cast("JsonMap", document)
            client.create(PLACES[kind].format(namespace=text_at(found, "metadata", "namespace")), found)
