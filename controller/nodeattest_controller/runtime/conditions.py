"""One condition of ours on an object whose other conditions are somebody else's, in both contracts of Cluster API.

A condition that says the same already is not written again; others' conditions stay, and a write that would undo what
somebody wrote meanwhile is a Conflict. ``lastTransitionTime`` moves with the status only: a MachineHealthCheck counts
from it, and what anyone can cause must not move it.
Source: cluster-api util/conditions/setter.go, util/conditions/deprecated/v1beta1/setter.go, util/conditions/patch.go;
apimachinery pkg/api/meta/conditions.go.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Conflict, Invalid
from nodeattest_parsing.objects import condition as find
from nodeattest_parsing.objects import items, mapping, number, rfc3339, text
from nodeattest_parsing.values import JsonObject, JsonValue, one_line

MAX_MESSAGE: Final = 10240
"""Characters; v1beta1's limit, the lower of the two (the CRDs' maxLength)."""
ATTEMPTS: Final = 3
"""How often one write is tried against somebody who writes the same object."""
_OWN_GROUP: Final = "attestation.cluster.x-k8s.io"
_OLD: Final = ("conditions",)
_NEW_IN_OLD: Final = ("v1beta2", "conditions")
"""Where a v1beta1 object keeps metav1 conditions, since Cluster API 1.9."""


class ConditionStatus(StrEnum):
    """A condition's status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Severity(StrEnum):
    """How bad a false condition of v1beta1 is; v1beta2 knows none."""

    ERROR = "Error"
    WARNING = "Warning"
    INFO = "Info"


@dataclass(frozen=True, slots=True)
class Condition:
    """What is said of an object; positive polarity, so that ``False`` is the bad news."""

    type: str
    status: ConditionStatus
    reason: str
    """CamelCase; required in v1beta2."""
    message: str = ""
    severity: Severity = Severity.WARNING


async def set_condition(
    client: ApiClient, path: str, obj: JsonObject, condition: Condition, now: Callable[[], datetime]
) -> bool:
    """Write one condition to the status of the object at ``path``; returns whether a write was needed.

    ``obj`` may come from a cache: one that is out of date is read again. Raises ApiError: NotFound also when another
    object has taken the name, Conflict when somebody writes faster than this does.

    1. A condition is replaced where only it is as it was read, whatever else of the object changed: Cluster API's
    controllers write a Machine all the time. 2. Where that fails, or there is none yet, the whole list is compared.
    """
    operations = _operations(obj, condition, now())
    if operations is not None:  # 1
        with suppress(Invalid, Conflict):
            await client.json_patch(f"{path}/status", operations)
            return True
    return await update_status(client, path, obj, lambda current: with_condition(current, condition, now()))


async def remove_condition(client: ApiClient, path: str, obj: JsonObject, kind: str) -> bool:
    """Take a condition of ours away; as ``set_condition``."""
    return await update_status(client, path, obj, lambda current: without_condition(current, kind))


def with_condition(obj: JsonObject, condition: Condition, now: datetime) -> JsonObject | None:
    """Make the merge patch of ``/status`` after which the object has this condition; None when it has it already."""
    return _patch(obj, lambda known, is_old: _put(known, condition, now, None if is_old else _generation(obj)))


def without_condition(obj: JsonObject, kind: str) -> JsonObject | None:
    """Make the merge patch of ``/status`` after which the object has no such condition; None when it has none."""
    return _patch(obj, lambda known, _is_old: [entry for entry in known if entry.get("type") != kind])


def _operations(obj: JsonObject, condition: Condition, now: datetime) -> list[JsonObject] | None:
    """Make the JSON patch that replaces this condition, or adds it where its list refuses to have it twice.

    None where there is nothing to do, or where a patch of the whole list is needed.
    """
    operations: list[JsonObject] = []
    for place in _places(obj):
        known, is_old = items(obj, "status", *place), _is_old(obj) and place == _OLD
        changed = _put(known, condition, now, None if is_old else _generation(obj))
        if changed == known:
            continue
        if not known or (is_old and len(changed) > len(known)):
            return None
        where = "/".join(("/status", *place))
        if len(changed) > len(known):
            operations.append({"op": "add", "path": f"{where}/-", "value": changed[-1]})
            continue
        at = next(number for number, entry in enumerate(known) if entry.get("type") == condition.type)
        operations.append({"op": "test", "path": f"{where}/{at}", "value": known[at]})
        operations.append({"op": "replace", "path": f"{where}/{at}", "value": changed[at]})
    same: JsonObject = {"op": "test", "path": "/metadata/uid", "value": text(obj, "metadata", "uid")}
    return [same, *operations] if operations else None


async def update_status(
    client: ApiClient, path: str, obj: JsonObject, patch_of: Callable[[JsonObject], JsonObject | None]
) -> bool:
    """Change an object's status by compare-and-swap: ``patch_of`` what was read, None where nothing is to change.

    Returns whether it was written; raises ApiError, Conflict after some attempts.
    """
    uid = text(obj, "metadata", "uid")
    for attempt in range(ATTEMPTS):
        patch = patch_of(obj)
        if patch is None:
            return False
        try:
            await client.merge_patch(f"{path}/status", patch)
        except Conflict:
            if attempt == ATTEMPTS - 1:
                raise
            obj = await client.get(path)
            if text(obj, "metadata", "uid") != uid:
                return False  # who was to be told of is gone
        else:
            return True
    return False


def _patch(obj: JsonObject, change: Callable[[list[JsonObject], bool], list[JsonObject]]) -> JsonObject | None:
    """Change each list of conditions that the object's version has; the patch holds for what was read only."""
    status: JsonObject = {}
    for place in _places(obj):
        known = items(obj, "status", *place)
        changed = change(known, _is_old(obj) and place == _OLD)
        if changed == known:
            continue
        value: JsonValue = [*changed]
        for step in reversed(place[1:]):
            value = {step: value}
        status[place[0]] = value
    if not status:
        return None
    return {"metadata": {"resourceVersion": text(obj, "metadata", "resourceVersion")}, "status": status}


def _is_old(obj: JsonObject) -> bool:
    """Return whether the object is of Cluster API's v1beta1, whose conditions have a severity."""
    group, _, version = text(obj, "apiVersion").rpartition("/")
    return group != _OWN_GROUP and version == "v1beta1"


def _places(obj: JsonObject) -> list[tuple[str, ...]]:
    """List where conditions stand; v1beta1 objects of Cluster API 1.9 and later have both kinds, and both are read."""
    both = _is_old(obj) and "v1beta2" in mapping(obj, "status")
    return [_OLD, _NEW_IN_OLD] if both else [_OLD]


def _generation(obj: JsonObject) -> int:
    return number(obj, "metadata", "generation") or 0


def _put(known: list[JsonObject], condition: Condition, now: datetime, generation: int | None) -> list[JsonObject]:
    """Replace the condition where it stands, or append it; ``generation`` None: in v1beta1's form."""
    before = find(known, condition.type)
    entry = _document(condition, generation)
    since = text(dict(before), "lastTransitionTime") if before is not None else ""
    moved = before is None or not since or before.get("status") != entry["status"]
    entry["lastTransitionTime"] = rfc3339(now) if moved else since
    if before is None:
        return [*known, entry]
    return [entry if one.get("type") == condition.type else one for one in known]


def _document(condition: Condition, generation: int | None) -> JsonObject:
    message = one_line(condition.message, MAX_MESSAGE)
    entry: JsonObject = {"type": condition.type, "status": str(condition.status), "reason": condition.reason}
    if generation is not None:
        return {**entry, "message": message, "observedGeneration": generation}
    if message:
        entry["message"] = message
    if condition.status is ConditionStatus.FALSE:
        entry["severity"] = str(condition.severity)
    return entry
