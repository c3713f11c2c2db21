"""CustomResourceDefinitions: their checks, their status, and the resources that they bring.

Promises: a definition is established as soon as it is written. Conversion between versions changes apiVersion only.
Source: staging/src/k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation/validation.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import (
    JsonMap,
    JsonValue,
    child,
    map_at,
    maps_at,
    text_at,
    texts_at,
    value_at,
)
from nodeattest_sandbox.apiserver.kinds import Column, Kind, Kinds
from nodeattest_sandbox.apiserver.status_errors import Cause, invalid_field, required

__all__ = ["COLLECTION", "collection_of", "establish", "register", "unregister", "validate"]

COLLECTION: Final = "apiextensions.k8s.io/customresourcedefinitions"


def collection_of(definition: JsonMap) -> str:
    """Return the collection in which the custom resources are kept."""
    return f"{text_at(definition, 'spec', 'group')}/{text_at(definition, 'spec', 'names', 'plural')}"


def validate(definition: JsonMap) -> list[Cause]:
    """Return what is wrong with a definition."""
    spec = map_at(definition, "spec")
    plural, group = text_at(spec, "names", "plural"), text_at(spec, "group")
    wanted = ("group", "scope", "names.plural", "names.kind")
    causes = [required(f"spec.{path}") for path in wanted if not text_at(spec, *path.split("."))]
    if text_at(definition, "metadata", "name") != f"{plural}.{group}":
        name = f'"{text_at(definition, "metadata", "name")}"'
        causes.append(invalid_field("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    versions = list(maps_at(spec, "versions"))
    if sum(version.get("storage") is True for version in versions) != 1:
        causes.append(invalid_field("spec.versions", "[]", "must have exactly one version marked as storage version"))
    for number, version in enumerate(versions):
        if value_at(version, "schema", "openAPIV3Schema") is None:
            causes.append(required(f"spec.versions[{number}].schema.openAPIV3Schema", "schemas are required"))
    return causes


def establish(definition: JsonMap, now: str) -> None:
    """Complete the names and write the status that says the resources are served."""
    names = child(child(definition, "spec"), "names")
    names.setdefault("singular", text_at(names, "kind").lower())
    names.setdefault("listKind", text_at(names, "kind") + "List")
    child(definition, "spec").setdefault("conversion", {"strategy": "None"})
    stored: list[JsonValue] = [v["name"] for v in maps_at(definition, "spec", "versions") if v.get("storage") is True]
    definition["status"] = {
        "conditions": [
            _condition("NamesAccepted", "NoConflicts", now),
            _condition("Established", "InitialNamesAccepted", now),
        ],
        "acceptedNames": {**names},
        "storedVersions": stored,
    }


def _condition(kind: str, reason: str, now: str) -> JsonMap:
    return {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": ""}


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
            short_names=tuple(texts_at(spec, "names", "shortNames")),
            categories=tuple(texts_at(spec, "names", "categories")),
            subresources=frozenset({"status"} & set(map_at(version, "subresources"))),
            columns=tuple(_columns(version)),
            custom=True,
            storage=version.get("storage") is True,
            unconditional_update=False,
            schema=map_at(version, "schema", "openAPIV3Schema"),
        )


def _columns(version: JsonMap) -> Iterator[Column]:
    for column in maps_at(version, "additionalPrinterColumns"):
        priority = column.get("priority")
        yield Column(
            text_at(column, "name"),
            text_at(column, "jsonPath"),
            text_at(column, "type") or "string",
            priority if isinstance(priority, int) else 0,
        )
