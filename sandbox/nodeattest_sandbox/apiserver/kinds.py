"""The resources that the server knows: built-in ones here, custom ones added as their definitions appear.

Promises: one lookup from (group, version, plural) to everything that handling and discovery need.
Source: pkg/registry/*/strategy.go for ``unconditional_update`` and ``create_on_update``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

__all__ = ["BUILT_IN", "VERBS", "Column", "Kind", "Kinds"]

VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Column:
    """One column that kubectl prints; ``path`` is a JSONPath."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource in one served version."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    columns: tuple[Column, ...] = ()
    custom: bool = False
    storage: bool = True  # The version in which objects are kept.
    unconditional_update: bool = True  # An update without resourceVersion overwrites.
    create_on_update: bool = False  # PUT of an absent object creates it.
    any_name: bool = False  # Names follow path-segment rules only.
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


def _rbac(plural: str, kind: str, *, namespaced: bool) -> Kind:
    return Kind(
        "rbac.authorization.k8s.io", "v1", plural, kind, namespaced=namespaced, create_on_update=True, any_name=True
    )  # fmt: skip


BUILT_IN: Final = (
    Kind("", "v1", "namespaces", "Namespace", namespaced=False, short_names=("ns",),
         subresources=frozenset({"status", "finalize"}), columns=(Column("Status", ".status.phase"),)),
    Kind("", "v1", "secrets", "Secret", columns=(Column("Type", ".type"),)),
    Kind("", "v1", "configmaps", "ConfigMap", short_names=("cm",)),
    Kind("", "v1", "nodes", "Node", namespaced=False, short_names=("no",), subresources=frozenset({"status"})),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",), unconditional_update=False),
    Kind("", "v1", "events", "Event", short_names=("ev",), create_on_update=True,
         columns=(Column("Type", ".type"), Column("Reason", ".reason"), Column("Message", ".message"))),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", unconditional_update=False, create_on_update=True,
         columns=(Column("Holder", ".spec.holderIdentity"),)),
    Kind("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False,
         short_names=("csr",), subresources=frozenset({"approval", "status"}), any_name=True,
         columns=(Column("SignerName", ".spec.signerName"), Column("Requestor", ".spec.username"),
                  Column("Condition", ".status.conditions[*].type"))),
    _rbac("clusterroles", "ClusterRole", namespaced=False),
    _rbac("clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    _rbac("roles", "Role", namespaced=True),
    _rbac("rolebindings", "RoleBinding", namespaced=True),
    Kind("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration",
         namespaced=False),
    Kind("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy",
         namespaced=False),
    Kind("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding",
         namespaced=False),
    Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False,
         short_names=("crd", "crds"), subresources=frozenset({"status"}), unconditional_update=False),
)  # fmt: skip


class Kinds:
    """The registry; custom resources come and go, built-in ones stay."""

    def __init__(self) -> None:
        self._served: dict[tuple[str, str, str], Kind] = {(k.group, k.version, k.plural): k for k in BUILT_IN}
        self._by_collection: dict[str, Kind] = {k.collection: k for k in BUILT_IN}

    def get(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the resource, or None when it is not served."""
        return self._served.get((group, version, plural))

    def of_collection(self, collection: str) -> Kind | None:
        """Return the stored version of the resource."""
        return self._by_collection.get(collection)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._served.values())

    def served(self) -> Mapping[tuple[str, str, str], Kind]:
        """Return all resources in the order in which they came."""
        return MappingProxyType(self._served)

    def replace_custom(self, collection: str, kinds: tuple[Kind, ...]) -> None:
        """Serve these versions of a custom resource instead of the ones before; none removes it."""
        self._served = {key: kind for key, kind in self._served.items() if kind.collection != collection}
        self._by_collection.pop(collection, None)
        for kind in kinds:
            self._served[(kind.group, kind.version, kind.plural)] = kind
            if kind.storage:
                self._by_collection[collection] = kind
