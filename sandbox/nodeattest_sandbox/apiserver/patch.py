"""The patches that the server takes: JSON patch (RFC 6902) and merge patch (RFC 7396)."""

from __future__ import annotations

from typing import Any, cast

import jsonpatch
from jsonpointer import JsonPointerException

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at
from nodeattest_sandbox.apiserver.status_errors import ApiError, bad_request


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


def json_patch(value: JsonMap, operations: JsonValue) -> JsonMap:
    """Apply an RFC 6902 patch; one that does not apply is a 422."""
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: not a list of operations")
    try:
        patched: Any = jsonpatch.apply_patch(value, cast("list[Any]", operations))
    except (jsonpatch.JsonPatchException, JsonPointerException) as problem:
        message = f"the server rejected our request due to an error in our request: {problem}"
        raise ApiError(422, "Invalid", message, {}) from problem
    return map_at(cast("JsonValue", patched))
