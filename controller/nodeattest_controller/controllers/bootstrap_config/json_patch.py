"""What differs between two versions of a piece of JSON: as paths, and as a JSON patch. Pure.

Lists are compared whole, as the API server merges those of Cluster API's kinds (``x-kubernetes-list-type: atomic`` in
v1beta2, the default in v1beta1). Source: RFC 6901, RFC 6902.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["JsonPointer", "patch", "paths", "touch_each_other"]

JsonPointer = tuple[str, ...]
"""Reference tokens, unescaped (RFC 6901)."""


def paths(before: JsonObject, after: JsonObject) -> frozenset[JsonPointer]:
    """Return where two objects differ, each time as deep as both are objects."""
    return frozenset(path for path, _, _ in _differences(before, after, ()))


def touch_each_other(one: frozenset[JsonPointer], other: frozenset[JsonPointer]) -> bool:
    """Return whether a path of one is a path of the other, or leads to one."""
    return any(a[: len(b)] == b[: len(a)] for a in one for b in other)


def patch(before: JsonObject, after: JsonObject, at: JsonPointer) -> list[JsonObject]:
    """Return the operations that make one object of the other, located at ``at``."""
    return [_operation(at + path, old, new) for path, old, new in _differences(before, after, ())]


class _Absent:
    """No value, which null is not."""


_ABSENT = _Absent()
_Maybe = JsonValue | _Absent


def _differences(
    before: JsonObject, after: JsonObject, at: JsonPointer
) -> Iterator[tuple[JsonPointer, _Maybe, _Maybe]]:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, _ABSENT), after.get(name, _ABSENT)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, (*at, name))
        elif not _same(old, new):
            yield (*at, name), old, new


def _same(old: _Maybe, new: _Maybe) -> bool:
    """Compare as JSON does: in Python true is 1."""
    if isinstance(old, _Absent) or isinstance(new, _Absent):
        return old is new
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(old[name], new[name]) for name in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_same(a, b) for a, b in zip(old, new, strict=True))
    return type(old) is type(new) and old == new


def _operation(path: JsonPointer, old: _Maybe, new: _Maybe) -> JsonObject:
    pointer = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)
    if isinstance(new, _Absent):
        return {"op": "remove", "path": pointer}
    return {"op": "add" if isinstance(old, _Absent) else "replace", "path": pointer, "value": new}
