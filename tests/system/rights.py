"""The rights that our manifests give, as atoms, and which of them a recorded run used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast

from nodeattest_controller import manifests
from nodeattest_parsing.objects import items, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import AuditEntry

MANAGEMENT: Final = "system:serviceaccount:nodeattest-system:node-attestation-controller"
WORKLOAD: Final = "system:serviceaccount:kube-system:node-attestation-controller"
ACCOUNT: Final = "node-attestation-controller"
_RBAC: Final = frozenset({"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"})


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, perhaps of one name."""

    namespace: str
    """Empty: everywhere."""
    group: str
    resource: str
    """With its subresource; ``*`` is any."""
    verb: str
    name: str
    """Empty: any."""

    def covers(self, made: AuditEntry) -> bool:
        """Tell whether a request used this right."""
        resource = f"{made.resource}/{made.subresource}" if made.subresource else made.resource
        return (
            self.group == made.group
            and self.verb == made.verb
            and self.resource in {"*", resource}
            and self.namespace in {"", made.namespace}
            and self.name in {"", made.name}
        )

    def __str__(self) -> str:
        """Say it as a person would."""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}.{self.group} {self.name}".rstrip() + where


def groups_of(user: str) -> list[str]:
    """Name the groups of a ServiceAccount's user."""
    namespace = user.split(":")[2]
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]


def workload_folders() -> list[str]:
    """Name every folder that gives the controller rights in workload clusters, now and to come."""
    root = manifests.folder("")
    return sorted(each.name for each in root.iterdir() if each.name.startswith("workload-"))


def apply(client: Client, folders: Sequence[str], user: str) -> None:
    """Create the RBAC objects and accounts of folders; ``user`` gets what the account gets.

    A client certificate has no room for the account's own name (X.520: 64 characters).
    """
    for folder in folders:
        for document in manifests.objects(folder):
            version, kind = text(document, "apiVersion"), text(document, "kind")
            namespace = text(document, "metadata", "namespace")
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            scope = f"/namespaces/{namespace}" if namespace else ""
            subjects = items(document, "subjects")
            if any(text(subject, "name") == ACCOUNT for subject in subjects):
                alias: JsonObject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
                document["subjects"] = [*subjects, alias]
            try:
                client.create(f"{root}{scope}/{kind.lower()}s", cast("JsonMap", document))
            except ApiRefusal as refusal:
                if refusal.code != HTTPStatus.CONFLICT or not _is_kubernetes_own(document):
                    raise


def _is_kubernetes_own(document: JsonObject) -> bool:
    """Tell whether kube-apiserver makes this object by itself at its start."""
    return text(document, "metadata", "labels", "kubernetes.io/bootstrapping") == "rbac-defaults"


def rights_of(user: str, folders: Iterable[str]) -> set[Right]:
    """List what the manifests of these folders give to a ServiceAccount."""
    documents = [document for folder in folders for document in manifests.objects(folder) if document["kind"] in _RBAC]
    _, _, namespace, name = user.split(":")
    return {
        right
        for binding in documents
        if any(
            (text(subject, "namespace"), text(subject, "name")) == (namespace, name)
            for subject in items(binding, "subjects")
        )
        for role in documents
        if (role["kind"], text(role, "metadata", "name"))
        == (text(binding, "roleRef", "kind"), text(binding, "roleRef", "name"))
        and text(role, "metadata", "namespace") in {"", text(binding, "metadata", "namespace")}
        for right in _atoms(role, text(binding, "metadata", "namespace"))
    }


def unused(rights: Iterable[Right], made: Sequence[AuditEntry]) -> set[Right]:
    """List the rights that no request used."""
    return {right for right in rights if not any(right.covers(one) for one in made)}


def _atoms(role: JsonObject, namespace: str) -> list[Right]:
    return [
        Right(namespace=namespace, group=group, resource=resource, verb=verb, name=name)
        for rule in items(role, "rules")
        for group in strings(rule, "apiGroups")
        for resource in strings(rule, "resources")
        for verb in strings(rule, "verbs")
        for name in (strings(rule, "resourceNames") or ("",))
    ]
