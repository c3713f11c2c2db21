"""Values against a structural schema, as an API server checks custom resources.

Promises: every refusal names its field; the schema is trusted, the value is not. Leaves out pruning, defaults, CEL
rules, formats and the combinators anyOf, oneOf and not.
Source: kube-openapi pkg/validation/validate; apimachinery pkg/util/validation/field/errors.go (reasons and messages).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,),
    "integer": (int,), "number": (int, float),
}  # fmt: skip
_META: Final = frozenset({"kind", "apiVersion", "metadata"})


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that the schema refuses."""

    reason: str
    """``FieldValueInvalid``, ``FieldValueRequired``, … as in ``metav1.StatusCause``."""
    message: str
    field: str


def violations(value: JsonObject, schema: JsonObject) -> list[Violation]:
    return list(_check(value, schema, ""))


def _check(value: JsonValue, schema: JsonObject, path: str) -> Iterator[Violation]:
    if value is None and schema.get("nullable") is True:
        return
    if not _fits(value, schema):
        got = type(value).__name__ if value is not None else "null"
        wanted = text(schema, "type") or "integer or string"
        yield Violation(
            "FieldValueTypeInvalid", f'Invalid value: "{got}": {path} in body must be of type {wanted}: "{got}"', path
        )
        return
    allowed = _list(schema, "enum")
    if allowed and value not in allowed:
        known = ", ".join(f'"{item}"' for item in sorted(map(str, allowed)))
        message = f'Unsupported value: "{value}": supported values: {known}'
        yield Violation("FieldValueNotSupported", message, path)
    match value:
        case dict():
            yield from _check_object(value, schema, path)
        case list():
            yield from _check_limits(len(value), schema, "Items", path)
            for number, item in enumerate(value):
                yield from _check(item, mapping(schema, "items"), f"{path}[{number}]")
        case str():
            yield from _check_limits(len(value), schema, "Length", path)
            pattern = text(schema, "pattern")
            if pattern and not re.search(pattern, value):
                yield _invalid(path, f'"{value}"', f"{path} in body should match '{pattern}'")
        case int() | float() if not isinstance(value, bool):
            yield from _check_limits(value, schema, "imum", path)
        case _:
            pass


def _fits(value: JsonValue, schema: JsonObject) -> bool:
    if schema.get("x-kubernetes-int-or-string") is True:
        return isinstance(value, (int, str)) and not isinstance(value, bool)
    wanted = text(schema, "type")
    if isinstance(value, bool):
        return wanted in {"", "boolean"}
    return not wanted or isinstance(value, _TYPES.get(wanted, (object,)))


def _check_object(value: JsonObject, schema: JsonObject, path: str) -> Iterator[Violation]:
    at = f"{path}." if path else ""
    for key in [key for key in _list(schema, "required") if isinstance(key, str)]:
        if key not in value:
            yield Violation("FieldValueRequired", "Required value", f"{at}{key}")
    properties, additional = mapping(schema, "properties"), schema.get("additionalProperties")
    for key, item in value.items():
        if not path and key in _META:
            continue
        if key in properties:
            yield from _check(item, mapping(properties, key), f"{at}{key}")
        elif isinstance(additional, dict):
            yield from _check(item, additional, f"{at}{key}")


def _check_limits(size: float, schema: JsonObject, suffix: str, path: str) -> Iterator[Violation]:
    least, most = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    if isinstance(least, (int, float)) and size < least:
        yield _invalid(path, str(size), f"{path} in body should be at least {least}")
    if isinstance(most, (int, float)) and size > most:
        yield _invalid(path, str(size), f"{path} in body should be at most {most}")


def _invalid(field: str, value: str, why: str) -> Violation:
    return Violation("FieldValueInvalid", f"Invalid value: {value}: {why}", field)


def _list(value: JsonObject, key: str) -> list[JsonValue]:
    found = value.get(key)
    return found if isinstance(found, list) else []
