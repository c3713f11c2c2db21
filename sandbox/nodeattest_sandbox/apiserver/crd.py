"""CustomResourceDefinitions: their status, and the resources that they bring.

Promises: a definition is established as soon as it is written. Conversion between versions changes apiVersion only.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from nodeattest_sandbox.apiserver.kinds import Kind, Kinds
from nodeattest_sandbox.apiserver.status_errors import Cause

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
