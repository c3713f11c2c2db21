"""Getters of raw Kubernetes JSON: each returns a value of its type or a default, never an exception.

Raw JSON in and out, because typed client models drop unknown fields silently. What has the wrong type is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from nodeattest_parsing.times import try_parse_rfc3339
from nodeattest_parsing.values import JsonObject, JsonValue

_CALENDAR_ENDS: Final = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
"""What ``parse_rfc3339`` gives for an offset that leaves the calendar; no API server writes such a time."""


def dig(value: JsonValue, *path: str) -> JsonValue:
    """Follow field names into nested objects; None where the way ends early."""
    for field in path:
        if not isinstance(value, dict):
            return None
        value = value.get(field)
    return value


def key_of(item: JsonObject) -> str:
    """Name an object within its collection: ``namespace/name``, or ``name`` when it has no namespace."""
    namespace, name = text(item, "metadata", "namespace"), text(item, "metadata", "name")
    return f"{namespace}/{name}" if namespace else name


def mapping(value: JsonValue | JsonObject, *path: str) -> JsonObject:
    for step in path:
        if not isinstance(value, dict):
            return {}
        value = value.get(step)
    return value if isinstance(value, dict) else {}


def text(value: JsonValue | JsonObject, *path: str) -> str:
    for step in path:  # not by ``mapping``: a join asks some four hundred times
        if not isinstance(value, dict):
            return ""
        value = value.get(step)
    return value if isinstance(value, str) else ""


def flag(value: JsonValue | JsonObject, *path: str) -> bool:
    return mapping(value, *path[:-1]).get(path[-1]) is True


def number(value: JsonValue | JsonObject, *path: str) -> int | None:
    found = mapping(value, *path[:-1]).get(path[-1])
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def items(value: JsonValue | JsonObject, *path: str) -> list[JsonObject]:
    found = mapping(value, *path[:-1]).get(path[-1])
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def strings(value: JsonValue | JsonObject, *path: str) -> tuple[str, ...]:
    found = mapping(value, *path[:-1]).get(path[-1])
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list) else ()


def text_map(value: JsonValue | JsonObject, *path: str) -> dict[str, str]:
    return {key: entry for key, entry in mapping(value, *path).items() if isinstance(entry, str)}


def metadata(value: JsonObject) -> JsonObject:
    return mapping(value, "metadata")


def object_identity(meta: JsonObject) -> JsonObject:
    """Return of an object's metadata what tells it from others."""
    return {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in meta}


def condition(conditions: Sequence[Mapping[str, JsonValue]], kind: str) -> Mapping[str, JsonValue] | None:
    return next((entry for entry in conditions if entry.get("type") == kind), None)


def moment(value: str) -> datetime | None:
    """Read an RFC 3339 time as the API server writes it; None if the text is not such a time."""
    found = try_parse_rfc3339(value)
    return None if found in _CALENDAR_ENDS else found


def rfc3339(value: datetime) -> str:
    """Write a time as Kubernetes does: UTC, whole seconds, ``Z``."""
    return value.astimezone(UTC).replace(tzinfo=None, microsecond=0).isoformat() + "Z"
