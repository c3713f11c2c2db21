"""Custom resources against their structural schema: pruning, defaults, validation.

Promises: unknown fields go unless the schema preserves them, absent ones get their default, and the refusals name the
field. Leaves out CEL rules, formats and the combinators anyOf/oneOf/not.
Source: apiextensions-apiserver/pkg/apiserver/schema/{pruning,defaulting}, kube-openapi validation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump, items_at, load, map_at, text_at, texts_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.status_errors import Cause, invalid_field, required, unsupported_value

__all__ = ["apply", "validate"]

_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,),
    "integer": (int,), "number": (int, float),
}  # fmt: skip
_META: Final = frozenset({"kind", "apiVersion", "metadata"})


def apply(kind: Kind, value: JsonMap) -> None:
    """Prune and default a custom resource in place; other kinds are left alone."""
    if kind.schema is None:
        return
    _prune(value, kind.schema, _META)
    _default(value, kind.schema)


def validate(kind: Kind, value: JsonMap) -> list[Cause]:
    """Return what the schema refuses."""
    return [] if kind.schema is None else list(_check(value, kind.schema, ""))


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


def _check(value: JsonValue, schema: JsonMap, path: str) -> Iterator[Cause]:
    if value is None and schema.get("nullable") is True:
        return
    if not _fits(value, schema):
        got = type(value).__name__ if value is not None else "null"
        wanted = text_at(schema, "type") or "integer or string"
        yield Cause(
            "FieldValueTypeInvalid", f'Invalid value: "{got}": {path} in body must be of type {wanted}: "{got}"', path
        )
        return
    allowed = items_at(schema, "enum")
    if allowed and value not in allowed:
        yield unsupported_value(path, str(value), [str(item) for item in allowed])
    match value:
        case dict():
            yield from _check_object(value, schema, path)
        case list():
            yield from _check_limits(len(value), schema, "Items", path)
            for number, item in enumerate(value):
                yield from _check(item, map_at(schema, "items"), f"{path}[{number}]")
        case str():
            yield from _check_limits(len(value), schema, "Length", path)
            pattern = text_at(schema, "pattern")
            if pattern and not re.search(pattern, value):
                yield invalid_field(path, f'"{value}"', f"{path} in body should match '{pattern}'")
        case int() | float() if not isinstance(value, bool):
            yield from _check_limits(value, schema, "imum", path)
        case _:
            pass


def _fits(value: JsonValue, schema: JsonMap) -> bool:
    if schema.get("x-kubernetes-int-or-string") is True:
        return isinstance(value, (int, str)) and not isinstance(value, bool)
    wanted = text_at(schema, "type")
    if isinstance(value, bool):
        return wanted in {"", "boolean"}
    return not wanted or isinstance(value, _TYPES.get(wanted, (object,)))


def _check_object(value: JsonMap, schema: JsonMap, path: str) -> Iterator[Cause]:
    at = f"{path}." if path else ""
    for key in texts_at(schema, "required"):
        if key not in value:
            yield required(f"{at}{key}")
    properties, additional = map_at(schema, "properties"), schema.get("additionalProperties")
    for key, item in value.items():
        if not path and key in _META:
            continue
        if key in properties:
            yield from _check(item, map_at(properties, key), f"{at}{key}")
        elif isinstance(additional, dict):
            yield from _check(item, additional, f"{at}{key}")


def _check_limits(size: float, schema: JsonMap, suffix: str, path: str) -> Iterator[Cause]:
    least, most = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    if isinstance(least, (int, float)) and size < least:
        yield invalid_field(path, str(size), f"{path} in body should be at least {least}")
    if isinstance(most, (int, float)) and size > most:
        yield invalid_field(path, str(size), f"{path} in body should be at most {most}")
