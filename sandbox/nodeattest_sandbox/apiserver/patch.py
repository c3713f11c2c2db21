"""The patches of the Kubernetes API: JSON patch, merge patch, strategic merge patch.

Promises: RFC 6902, RFC 7396, and of strategic merging what built-in types here declare: the lists below, ``$patch``,
``$deleteFromPrimitiveList``; ordering directives are ignored. The object given is not changed.
Source: k8s.io/apimachinery/pkg/util/strategicpatch; patchStrategy tags of k8s.io/api.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump, items_at, load, text_at
from nodeattest_sandbox.apiserver.status_errors import ApiError, bad_request

__all__ = ["json_patch", "merge_patch", "strategic_merge_patch"]

# Lists that are merged by a key, by the last two steps of their path; the conditions of a CSR are not among them.
_MERGE_KEYS: Final[Mapping[str, str]] = {
    "metadata.ownerReferences": "uid",
    "Node/status.conditions": "type",
    "Node/status.addresses": "type",
    "Namespace/status.conditions": "type",
    "ServiceAccount/secrets": "name",
    "Deployment/spec.template.spec.containers": "name",
}
_MERGED_SETS: Final = frozenset({"metadata.finalizers"})


def merge_patch(value: JsonValue, patch: JsonValue) -> JsonValue:
    """Apply an RFC 7396 merge patch."""
    if not isinstance(patch, dict):
        return patch
    merged: JsonMap = {**value} if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), change)
    return merged


def strategic_merge_patch(kind: str, value: JsonMap, patch: JsonMap) -> JsonMap:
    """Apply a strategic merge patch to an object of a built-in kind."""
    return _strategic(kind, "", value, patch)


def _strategic(kind: str, path: str, value: JsonMap, patch: JsonMap) -> JsonMap:
    if patch.get("$patch") == "replace":
        return {key: change for key, change in patch.items() if key != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    merged: JsonMap = {**value}
    for key, change in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name, gone = key.partition("/")[2], change if isinstance(change, list) else []
            merged[name] = [item for item in items_at(merged, name) if item not in gone]
        elif key.startswith("$"):
            continue
        elif change is None:
            merged.pop(key, None)
        else:
            merged[key] = _strategic_value(kind, f"{path}.{key}".lstrip("."), merged.get(key), change)
    return merged


def _strategic_value(kind: str, path: str, value: JsonValue, change: JsonValue) -> JsonValue:
    if isinstance(change, dict):
        return _strategic(kind, path, value if isinstance(value, dict) else {}, change)
    if not isinstance(change, list) or not isinstance(value, list):
        return [item for item in change if not text_at(item, "$patch")] if isinstance(change, list) else change
    if path in _MERGED_SETS:
        return [*value, *(item for item in change if item not in value)]
    merge_key = _MERGE_KEYS.get(path) or _MERGE_KEYS.get(f"{kind}/{path}")
    return _merge_by(merge_key, kind, path, value, change) if merge_key else change


def _merge_by(key: str, kind: str, path: str, value: list[JsonValue], change: list[JsonValue]) -> list[JsonValue]:
    merged = list(value)
    for item in change:
        if not isinstance(item, dict) or not text_at(item, key):
            raise bad_request(f"map: {path} does not contain declared merge key: {key}")
        place = next((n for n, old in enumerate(merged) if text_at(old, key) == text_at(item, key)), None)
        if item.get("$patch") == "delete":
            merged = [old for old in merged if text_at(old, key) != text_at(item, key)]
        elif place is None:
            merged.append(item)
        else:
            old = merged[place]
            merged[place] = _strategic(kind, f"{path}[]", old if isinstance(old, dict) else {}, item)
    return merged


def json_patch(value: JsonMap, operations: JsonValue) -> JsonMap:
    """Apply an RFC 6902 patch; a test that fails, or a path that is not there, is a 422."""
    document: JsonValue = load(dump(value))
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: not a list of operations")
    for operation in operations:
        if not isinstance(operation, dict) or text_at(operation, "op") not in _OPERATIONS:
            raise bad_request("error decoding patch: unknown operation")
        try:
            document = _OPERATIONS[text_at(operation, "op")](document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as problem:
            raise _unprocessable(operation) from problem
    if not isinstance(document, dict):
        raise bad_request("the patched document is not an object")
    return document


def _unprocessable(operation: JsonMap) -> ApiError:
    said = f"{text_at(operation, 'op')} operation does not apply at {text_at(operation, 'path')}"
    message = f"the server rejected our request due to an error in our request: {said}"
    return ApiError(422, "Invalid", message, {})


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError(pointer)
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _walk(document: JsonValue, steps: list[str]) -> JsonValue:
    for step in steps:
        match document:
            case dict():
                document = document[step]
            case list():
                document = document[int(step)]
            case _:
                raise KeyError(step)
    return document


def _add(document: JsonValue, operation: JsonMap) -> JsonValue:
    return _put(document, _steps(text_at(operation, "path")), operation["value"])


def _put(document: JsonValue, steps: list[str], value: JsonValue) -> JsonValue:
    if not steps:
        return value
    match _walk(document, steps[:-1]):
        case dict() as parent:
            parent[steps[-1]] = value
        case list() as parent:
            parent.insert(len(parent) if steps[-1] == "-" else _index(steps[-1], len(parent)), value)
        case _:
            raise KeyError(steps[-1])
    return document


def _index(step: str, limit: int) -> int:
    if not step.isdigit() or int(step) > limit:
        raise IndexError(step)
    return int(step)


def _remove(document: JsonValue, operation: JsonMap) -> JsonValue:
    steps = _steps(text_at(operation, "path"))
    match _walk(document, steps[:-1]):
        case dict() as parent:
            del parent[steps[-1]]
        case list() as parent:
            del parent[_index(steps[-1], len(parent) - 1)]
        case _:
            raise KeyError(steps[-1])
    return document


def _replace(document: JsonValue, operation: JsonMap) -> JsonValue:
    _walk(document, _steps(text_at(operation, "path")))
    if text_at(operation, "path"):
        _remove(document, operation)
    return _add(document, operation)


def _move(document: JsonValue, operation: JsonMap) -> JsonValue:
    value = _walk(document, _steps(text_at(operation, "from")))
    _remove(document, {"path": operation["from"]})
    return _put(document, _steps(text_at(operation, "path")), value)


def _copy(document: JsonValue, operation: JsonMap) -> JsonValue:
    value = load(dump({"value": _walk(document, _steps(text_at(operation, "from")))}))
    return _put(document, _steps(text_at(operation, "path")), value["value"] if isinstance(value, dict) else None)


def _test(document: JsonValue, operation: JsonMap) -> JsonValue:
    if _walk(document, _steps(text_at(operation, "path"))) != operation.get("value"):
        raise ValueError
    return document


_OPERATIONS: Final[Mapping[str, Callable[[JsonValue, JsonMap], JsonValue]]] = {
    "add": _add, "remove": _remove, "replace": _replace, "move": _move, "copy": _copy, "test": _test,
}  # fmt: skip
