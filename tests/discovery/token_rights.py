"""The shipped rights of the token controllers, given to the user whom the manifests name."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, cast

from nodeattest_controller import manifests
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import ApiRefusal, Client

USER: Final = "system:serviceaccount:kube-system:node-attestation-controller"
GROUPS: Final = ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"


def apply(admin: Client, objects: list[JsonMap]) -> list[str]:
    """Create namespaced RBAC objects; return their paths."""
    paths: list[str] = []
    for made in objects:
        folder = "roles" if made["kind"] == "Role" else "rolebindings"
        collection = f"{RBAC}/namespaces/{text_at(made, 'metadata', 'namespace')}/{folder}"
        admin.create(collection, made)
        paths.append(f"{collection}/{text_at(made, 'metadata', 'name')}")
    return paths


def withdraw(admin: Client, paths: list[str]) -> None:
    for path in paths:
        with suppress(ApiRefusal):
            admin.send("DELETE", path)


def shipped(base: str, role: str = "") -> list[JsonMap]:
    """Return the objects of a base, or those of one role in it."""
    found = cast("list[JsonMap]", manifests.objects(base))
    return [made for made in found if role in {"", text_at(made, "metadata", "name")}]
