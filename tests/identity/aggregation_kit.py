"""How a real kube-apiserver comes to aggregate a gateway: the shipped rights, an APIService, kubeconfigs."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final, cast

from front_kit import Authority
from gateway_kit import NAME, NAMESPACE, send

from nodeattest_controller import manifests
from nodeattest_identity.addon.gateway.api_group import API_SERVICE, ROOT
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane

__all__ = ["PLACES", "RBAC", "aggregate", "apply_rights", "is_available", "token_kubeconfig"]

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


def aggregate(client: Client, serving: Authority, port: int) -> None:
    """Let kube-apiserver ask this machine: an ExternalName is the only service that leads to loopback."""
    client.create(
        f"/api/v1/namespaces/{NAMESPACE}/services",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
    )
    [service] = [each for each in manifests.objects("addon-gateway") if each["kind"] == "APIService"]
    wanted = cast("dict[str, object]", service["spec"])
    spec = {
        **wanted,
        "caBundle": base64.b64encode(serving.pem).decode(),
        "service": {"name": NAME, "namespace": NAMESPACE, "port": port},
    }
    client.create("/apis/apiregistration.k8s.io/v1/apiservices", cast("JsonMap", {**service, "spec": spec}))


def is_available(client: Client) -> bool:
    found = client.get(f"/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}")
    conditions = maps_at(found, "status", "conditions")
    if not any(each["type"] == "Available" and each["status"] == "True" for each in conditions):
        return False
    return send(client, "GET", ROOT).status == 200  # the path is handed over a moment later
