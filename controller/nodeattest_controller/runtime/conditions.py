"""One condition of an object whose other conditions are somebody else's, in both contracts of Cluster API.

An equal condition is not written again, and a write over somebody's newer one is a Conflict. ``lastTransitionTime``
moves with the status only: a MachineHealthCheck counts from it.
Source: cluster-api util/conditions/setter.go and deprecated/v1beta1/setter.go; apimachinery meta/conditions.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Conflict
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
    """A condition of positive polarity: ``False`` is the bad news."""

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

    ``obj`` may come from a cache: if it is out of date, it is read again. Raises ApiError.
    """
    return await update_status(client, path, obj, lambda current: with_condition(current, condition, now()))


async def remove_condition(client: ApiClient, path: str, obj: JsonObject, kind: str) -> bool:
    """Remove a condition of ours; as ``set_condition``."""
    return await update_status(client, path, obj, lambda current: without_condition(current, kind))


def with_condition(obj: JsonObject, condition: Condition, now: datetime) -> JsonObject | None:
    """Return the merge patch of ``/status`` that sets this condition; None if the object has it already."""
    generation = number(obj, "metadata", "generation") or 0
    return _patch(obj, lambda known, is_old: _put(known, condition, now, None if is_old else generation))


def without_condition(obj: JsonObject, kind: str) -> JsonObject | None:
    """Return the merge patch of ``/status`` that removes this condition; None if the object lacks it."""
    return _patch(obj, lambda known, _is_old: [entry for entry in known if entry.get("type") != kind])


async def update_status(
    client: ApiClient, path: str, obj: JsonObject, patch_of: Callable[[JsonObject], JsonObject | None]
) -> bool:
    """Change an object's status by compare-and-swap; ``patch_of`` returns the patch of what was read, or None.

    Returns whether it was written. Raises ApiError, Conflict after ``ATTEMPTS``.
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
                return False  # another object of the same name
        else:
            return True
    return False


def _patch(obj: JsonObject, change: Callable[[list[JsonObject], bool], list[JsonObject]]) -> JsonObject | None:
    """Change each list of conditions of the object's version; the patch holds for the version that was read only."""
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
    """Return the paths of conditions; v1beta1 objects of Cluster API 1.9 and later have both kinds."""
    both = _is_old(obj) and "v1beta2" in mapping(obj, "status")
    return [_OLD, _NEW_IN_OLD] if both else [_OLD]


def _put(known: list[JsonObject], condition: Condition, now: datetime, generation: int | None) -> list[JsonObject]:
    """Replace the condition in its place, or append it; ``generation`` None: in v1beta1's form."""
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
