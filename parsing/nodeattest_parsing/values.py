"""The types of parsed JSON and YAML, and how to follow field names in them."""

from __future__ import annotations

__all__ = ["IntegerJsonObject", "IntegerJsonValue", "JsonObject", "JsonValue", "dig", "dig_text", "key_of"]

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]

IntegerJsonValue = str | int | bool | None | list["IntegerJsonValue"] | dict[str, "IntegerJsonValue"]
"""JSON whose numbers are integers."""
IntegerJsonObject = dict[str, IntegerJsonValue]


def dig(value: JsonValue, *path: str) -> JsonValue:
    """Follow field names into nested objects; None where the way ends early."""
    for field in path:
        if not isinstance(value, dict):
            return None
        value = value.get(field)
    return value


def dig_text(value: JsonValue, *path: str) -> str:
    """Follow field names to a string; the empty string where there is none (Go's zero value)."""
    found = dig(value, *path)
    return found if isinstance(found, str) else ""


def key_of(item: JsonObject) -> str:
    """Name an object within its collection: ``namespace/name``, or ``name`` when it has no namespace."""
    namespace, name = dig_text(item, "metadata", "namespace"), dig_text(item, "metadata", "name")
    return f"{namespace}/{name}" if namespace else name
