"""Creating the shipped manifests through the API: what ``kubectl apply`` would do with RBAC objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nodeattest_controller.model.objects import mapping, text
from nodeattest_kube import paths
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_sandbox.client import ApiRefusal, Client

__all__ = ["create_all"]

_PLURALS: Final = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Namespace": "namespaces",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ServiceAccount": "serviceaccounts",
}


def create_all(client: Client, objects: Iterable[JsonObject], *, user: str) -> None:
    """Create each object unless it is there; bindings are made for the user, who has a certificate of the demo's CA."""
    for shipped in objects:
        body = _bound_to(shipped, user) if text(shipped, "kind").endswith("Binding") else shipped
        group, _, version = text(body, "apiVersion").rpartition("/")
        plural = _PLURALS[text(body, "kind")]
        namespace = text(mapping(body, "metadata"), "namespace") or None
        try:
            client.create(paths.collection_path(group, version, plural, namespace=namespace), body)
        except ApiRefusal as refusal:
            if refusal.reason != "AlreadyExists":
                raise


def _bound_to(binding: JsonObject, user: str) -> JsonObject:
    return {**binding, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]}
