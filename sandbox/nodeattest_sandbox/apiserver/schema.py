"""Custom resources by their structural schema: pruning, defaults, validation.

Promises: unknown fields go unless the schema preserves them, absent ones get their default, and the refusals name the
field. Leaves the checks to ``nodeattest_parsing.structural_schema``.
Source: apiextensions-apiserver/pkg/apiserver/schema/{pruning,defaulting}.
"""

from __future__ import annotations

from typing import Final

from nodeattest_parsing import structural_schema
from nodeattest_sandbox.apiserver.jsonvalue import (
    JsonMap,
    JsonValue,
    dump,
    load,
    map_at,
)
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.status_errors import Cause

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
