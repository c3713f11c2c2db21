"""The resources that the server knows: built-in ones here, custom ones added as their definitions appear."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import (
    JsonMap,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource in one served version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    custom: bool = False
    storage: bool = True  # The version in which objects are kept.
    unconditional_update: bool = True  # An update without resourceVersion overwrites.
    create_on_update: bool = False  # PUT of an absent object creates it.
    schema: JsonMap | None = field(default=None, compare=False)  # openAPIV3Schema of a custom resource

    @property
    def api_version(self) -> str:
        """Return what objects carry as apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def collection(self) -> str:
        """Return the name of the collection in the store: the same for all versions."""
        return f"{self.group}/{self.plural}"

    @property
    def status_subresource(self) -> bool:
        """Return whether status is written apart."""
        return "status" in self.subresources


_RBAC: Final = "rbac.authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"
_STATUS: Final = frozenset({"status"})

BUILT_IN: Final = (
    Kind("", "v1", "namespaces", "Namespace", namespaced=False, subresources=_STATUS),
    Kind("", "v1", "secrets", "Secret"),
    Kind("", "v1", "configmaps", "ConfigMap"),
    Kind("", "v1", "nodes", "Node", namespaced=False, subresources=_STATUS),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", unconditional_update=False),
    Kind("", "v1", "events", "Event", create_on_update=True),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", unconditional_update=False, create_on_update=True),
    Kind(
        "certificates.k8s.io",
        "v1",
        "certificatesigningrequests",
        "CertificateSigningRequest",
        namespaced=False,
        subresources=frozenset({"approval", "status"}),
    ),
    Kind(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False, create_on_update=True),
    Kind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False, create_on_update=True),
    Kind(_RBAC, "v1", "roles", "Role", create_on_update=True),
    Kind(_RBAC, "v1", "rolebindings", "RoleBinding", create_on_update=True),
    Kind(_ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False),
    Kind(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False),
    Kind(_ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False),
    Kind(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        subresources=_STATUS,
        unconditional_update=False,
    ),
)


class Kinds:
    """The registry; custom resources come and go, built-in ones stay."""

    def __init__(self) -> None:
        self._served = {(kind.group, kind.version, kind.plural): kind for kind in BUILT_IN}
        self._by_collection = {kind.collection: kind for kind in BUILT_IN}

    def get(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the resource, or None when it is not served."""
        return self._served.get((group, version, plural))

    def of_collection(self, collection: str) -> Kind | None:
        """Return the stored version of the resource."""
        return self._by_collection.get(collection)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._served.values())

    def replace_custom(self, collection: str, kinds: tuple[Kind, ...]) -> None:
        """Serve these versions of a custom resource instead of the ones before; none removes it."""
        self._served = {key: kind for key, kind in self._served.items() if kind.collection != collection}
        self._by_collection.pop(collection, None)
        for kind in kinds:
            self._served[(kind.group, kind.version, kind.plural)] = kind
            if kind.storage:
                self._by_collection[collection] = kind
