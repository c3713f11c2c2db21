"""The Table form of objects and lists, which kubectl asks for when a person looks.

Promises: Name, the columns of the kind, Age; custom resources print their additionalPrinterColumns.
Source: k8s.io/apimachinery/pkg/apis/meta/v1/types.go (Table), apiextensions-apiserver tableconvertor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, text_at
from nodeattest_sandbox.apiserver.kinds import Column, Kind
from nodeattest_sandbox.apiserver.store import Stored

__all__ = ["table", "wants_table"]

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def wants_table(accept: str) -> bool:
    """Return whether the client prefers a Table."""
    return "as=Table" in accept and "g=meta.k8s.io" in accept


def table(kind: Kind, objects: Sequence[Stored], version: int, now: datetime) -> JsonMap:
    """Return the objects as a Table."""
    columns = kind.columns if any(c.path == ".metadata.creationTimestamp" for c in kind.columns) else (
        *kind.columns, Column("Age", ".metadata.creationTimestamp", "date"))  # fmt: skip
    definitions: list[JsonValue] = [
        _definition(Column("Name", ".metadata.name"), "name"),
        *(_definition(c, "") for c in columns),
    ]
    rows: list[JsonValue] = [_row(stored.value, columns, now) for stored in objects]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(version)},
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _definition(column: Column, form: str) -> JsonMap:
    return {"name": column.name, "type": "string" if column.type == "date" else column.type, "format": form,
            "description": column.name, "priority": column.priority}  # fmt: skip


def _row(value: JsonMap, columns: Sequence[Column], now: datetime) -> JsonMap:
    cells: list[JsonValue] = [text_at(value, "metadata", "name"), *(_cell(value, column, now) for column in columns)]
    partial: JsonMap = {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": map_at(value, "metadata"),
    }
    return {"cells": cells, "object": partial}


def _cell(value: JsonMap, column: Column, now: datetime) -> JsonValue:
    found = list(_look_up(value, column.path))
    if not found:
        return None if column.type != "date" else "<unknown>"
    if column.type == "date" and isinstance(found[0], str):
        return _age(found[0], now)
    if len(found) == 1 and not isinstance(found[0], (dict, list)):
        return found[0] if column.type in {"integer", "number", "boolean"} else str(found[0])
    return ",".join(str(item) for item in found)


_STEP = re.compile(r"""\.(?P<name>(?:\\.|[^.\[\\])+)|\[(?P<every>\*)]|\[(?P<index>\d+)]|\['(?P<quoted>[^']+)']|
                       \[\?\(@\.(?P<key>\w+)\s*==\s*["'](?P<wanted>[^"']*)["']\)]""", re.VERBOSE)  # fmt: skip


def _look_up(value: JsonValue, path: str) -> Iterator[JsonValue]:
    """Follow the part of JSONPath that printer columns use: names, indices, ``[*]`` and equality filters."""
    found: list[JsonValue] = [value]
    for step in _STEP.finditer(path):
        found = [item for one in found for item in _follow(one, step)]
    return (item for item in found if item is not None)


def _follow(value: JsonValue, step: re.Match[str]) -> Iterator[JsonValue]:
    name = step["name"] or step["quoted"]
    if name and isinstance(value, dict):
        yield value.get(name.replace("\\.", "."))
    elif isinstance(value, list) and step["every"]:
        yield from value
    elif isinstance(value, list) and step["index"]:
        yield from value[int(step["index"]) : int(step["index"]) + 1]
    elif isinstance(value, list) and step["key"]:
        yield from (item for item in value if text_at(item, step["key"]) == step["wanted"])


def _age(moment: str, now: datetime) -> str:
    try:
        seconds = int((now - datetime.fromisoformat(moment).astimezone(UTC)).total_seconds())
    except ValueError:
        return "<invalid>"
    for unit, size in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"
