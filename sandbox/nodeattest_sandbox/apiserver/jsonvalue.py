"""JSON as typed values, and the readers that walk it without ever raising.

Promises: a reader gives the value of the asked type or an empty one. Leaves validation to the caller.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeAlias, cast

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
JsonMap: TypeAlias = dict[str, JsonValue]


def load(data: bytes | str) -> JsonValue:
    """Parse JSON; raises ValueError."""
    return cast("JsonValue", json.loads(data))


def dump(value: JsonValue) -> bytes:
    """Render compact JSON in the order of the keys."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def value_at(value: JsonValue, *path: str) -> JsonValue:
    """Return what is at the path, or None."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def map_at(value: JsonValue, *path: str) -> JsonMap:
    """Return the object at the path; an empty one (not attached to the value) where there is none."""
    found = value_at(value, *path)
    return found if isinstance(found, dict) else {}


def items_at(value: JsonValue, *path: str) -> list[JsonValue]:
    """Return the array at the path, or an empty one."""
    found = value_at(value, *path)
    return found if isinstance(found, list) else []


def maps_at(value: JsonValue, *path: str) -> Iterator[JsonMap]:
    """Yield the objects of the array at the path."""
    return (item for item in items_at(value, *path) if isinstance(item, dict))


def text_at(value: JsonValue, *path: str) -> str:
    """Return the string at the path, or an empty one."""
    found = value_at(value, *path)
    return found if isinstance(found, str) else ""


def texts_at(value: JsonValue, *path: str) -> list[str]:
    """Return the strings of the array at the path."""
    return [item for item in items_at(value, *path) if isinstance(item, str)]


def child(value: JsonMap, key: str) -> JsonMap:
    """Return the object under the key, attached to the value: one is put there when there is none."""
    found = value.get(key)
    if not isinstance(found, dict):
        found = value[key] = {}
    return found
