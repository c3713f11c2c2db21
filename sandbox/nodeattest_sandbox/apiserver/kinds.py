"""The resources that the server knows: built-in ones here, custom ones added as their definitions appear.

CustomResourceDefinitions: their status, and the resources that they bring.

Promises: a definition is established as soon as it is written. Conversion between versions changes apiVersion only.

Custom resources by their structural schema: pruning, defaults, validation.

Promises: unknown fields go unless the schema preserves them, absent ones get their default, and the refusals name the
field. Leaves the checks to ``nodeattest_parsing.structural_schema``.
Source: apiextensions-apiserver/pkg/apiserver/schema/{pruning,defaulting}.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from nodeattest_parsing import structural_schema
from nodeattest_sandbox.apiserver.jsonvalue import (
    JsonMap,
    JsonValue,
    child,
    dump,
    load,
    map_at,
    maps_at,
    text_at,
)
from nodeattest_sandbox.apiserver.status_errors import Cause


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


COLLECTION: Final = "apiextensions.k8s.io/customresourcedefinitions"


def collection_of(definition: JsonMap) -> str:
    """Return the collection in which the custom resources are kept."""
    return f"{text_at(definition, 'spec', 'group')}/{text_at(definition, 'spec', 'names', 'plural')}"


def establish(definition: JsonMap, now: str) -> None:
    """Complete the names and write the status that says the resources are served."""
    names = child(child(definition, "spec"), "names")
    names.setdefault("singular", text_at(names, "kind").lower())
    names.setdefault("listKind", text_at(names, "kind") + "List")
    child(definition, "spec").setdefault("conversion", {"strategy": "None"})
    stored: list[JsonValue] = [v["name"] for v in maps_at(definition, "spec", "versions") if v.get("storage") is True]
    conditions: list[JsonValue] = [
        {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": ""}
        for kind, reason in (("NamesAccepted", "NoConflicts"), ("Established", "InitialNamesAccepted"))
    ]
    definition["status"] = {"conditions": conditions, "acceptedNames": {**names}, "storedVersions": stored}


def register(kinds: Kinds, definition: JsonMap) -> None:
    """Serve the resources of a definition."""
    kinds.replace_custom(collection_of(definition), tuple(_kinds(definition)))


def unregister(kinds: Kinds, definition: JsonMap) -> None:
    """Serve them no more."""
    kinds.replace_custom(collection_of(definition), ())


def _kinds(definition: JsonMap) -> Iterator[Kind]:
    spec = map_at(definition, "spec")
    for version in maps_at(spec, "versions"):
        if version.get("served") is not True:
            continue
        yield Kind(
            text_at(spec, "group"),
            text_at(version, "name"),
            text_at(spec, "names", "plural"),
            text_at(spec, "names", "kind"),
            namespaced=text_at(spec, "scope") == "Namespaced",
            subresources=frozenset({"status"} & set(map_at(version, "subresources"))),
            custom=True,
            storage=version.get("storage") is True,
            unconditional_update=False,
            schema=map_at(version, "schema", "openAPIV3Schema"),
        )


_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_META: Final = frozenset({"kind", "apiVersion", "metadata"})


def apply(kind: Kind, value: JsonMap) -> None:
    """Prune and default a custom resource in place; other kinds are left alone."""
    if kind.schema is None:
        return
    _prune(value, kind.schema, _META)
    _default(value, kind.schema)


def validate(kind: Kind, value: JsonMap) -> list[Cause]:
    """Return what the schema refuses."""
    if kind.schema is None:
        return []
    return [Cause(one.reason, one.message, one.field) for one in structural_schema.violations(value, kind.schema)]


def _prune(value: JsonValue, schema: JsonMap, keep: frozenset[str] = frozenset()) -> None:
    if isinstance(value, list):
        for item in value:
            _prune(item, map_at(schema, "items"))
    if not isinstance(value, dict):
        return
    properties, additional = map_at(schema, "properties"), schema.get("additionalProperties")
    preserved = schema.get(_PRESERVE) is True or additional is True
    if schema.get("x-kubernetes-embedded-resource") is True:
        keep = _META
    for key in list(value):
        if key in keep:
            continue
        if key in properties:
            _prune(value[key], map_at(properties, key))
        elif isinstance(additional, dict):
            _prune(value[key], additional)
        elif not preserved:
            del value[key]


def _default(value: JsonValue, schema: JsonMap) -> None:
    if isinstance(value, list):
        for item in value:
            _default(item, map_at(schema, "items"))
    if not isinstance(value, dict):
        return
    for key, rule in map_at(schema, "properties").items():
        if not isinstance(rule, dict):
            continue
        if key not in value and "default" in rule:
            value[key] = load(dump(rule["default"]))
        if key in value:
            _default(value[key], rule)
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        for item in value.values():
            _default(item, additional)
