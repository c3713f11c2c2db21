"""AdmissionReviews: an API server's question about an object, our verdict, and the answer as a JSON patch. Pure.

Bytes give an ``AdmissionReview`` or ``Denied``. No ``repr`` shows the object: at an update it holds a bootstrap token.
Lists are compared as a whole, as the API server merges those of Cluster API.
Source: RFC 6901, RFC 6902; k8s.io/api admission/v1 types.go; apiserver pkg/admission/plugin/webhook/request.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from nodeattest_kube.answers import parse_json
from nodeattest_parsing import strict_json
from nodeattest_parsing.objects import flag, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue, ParseError, one_line
from nodeattest_providers.errors import Denied, Reason

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
MAX_BODY: Final = 4 << 20
"""Bytes: two objects of 1.5 MiB, etcd's limit (--max-request-bytes), and some more."""
MAX_VALUES: Final = 50_000
"""A KubeadmControlPlane with a hundred files has some thousands, twice at an update."""
_VALUE_COST: Final = 256
"""Bytes of memory of a value beside its text, at most: an object of one member."""
_WIDEST: Final = 4
"""Bytes of memory of a character that is not ASCII."""
_MAX_UID: Final = 128
"""Characters; a UID is a UUID of 36."""
MAX_MESSAGE: Final = 4096
"""Characters of a refusal."""
_MAX_WARNING: Final = 256
"""Characters that an API server shows of one warning (admission/v1, AdmissionResponse.warnings)."""
_RETRY_AFTER: Final = 2
"""Seconds."""
_REMEDY: Final = "send what kube-apiserver sends to a webhook with admissionReviewVersions [v1]"


class Operation(StrEnum):
    """An operation that is reviewed."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionReview:
    """An API server's question."""

    uid: str
    operation: Operation | None
    """None for an operation that is not reviewed: a deletion, a subresource."""
    group: str
    kind: str
    namespace: str
    name: str
    """Empty with ``generateName``."""
    dry_run: bool
    target: JsonObject = field(repr=False)
    before: JsonObject | None = field(repr=False)


_UNREADABLE: Final = "cannot read the object's Cluster and policy{}; try again"
_POLICY_SAYS_WHY: Final = (
    "its cluster's policy does not allow it: see the policy's status, Events of the MachineSet, and the log of the "
    "controller"
)
"""For a caller without a client certificate, where the reason would quote a policy."""


class AdmissionOutcome(StrEnum):
    """What became of an object; a metric's label."""

    UNCONCERNED = "unconcerned"
    """It has no cluster that a policy selects, or a paused one; or nothing relevant changes."""
    RENDERED = "rendered"
    UNCHANGED = "unchanged"
    LEFT = "left"
    """It is not rendered and has machines; or a policy that was invalid before."""
    AUDITED = "audited"
    ACCEPTED = "accepted"
    DENIED = "denied"
    UNAVAILABLE = "unavailable"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an object."""

    outcome: AdmissionOutcome
    warnings: tuple[str, ...] = ()
    """For every caller: they name no object but the reviewed one."""
    denied: Denied | None = None
    """Why the object is refused; if it passes, the end of the last warning."""
    public: str = ""
    """Replaces ``denied`` for callers that were not verified; empty: the usual sentence."""
    patch: list[JsonObject] = field(default_factory=list[JsonObject], repr=False)
    unread: str = ""
    """The error that kept facts from being read."""

    @property
    def passes(self) -> bool:
        return self.outcome not in {AdmissionOutcome.DENIED, AdmissionOutcome.UNAVAILABLE}

    def message(self, *, is_verified: bool) -> str:
        """Explain why the object does not pass.

        An unverified caller gets a contradiction, which is in its own object, and nothing of a policy.
        """
        if self.denied is None:
            return _UNREADABLE.format(f": {self.unread}" if is_verified else "")
        if is_verified or self.denied.reason is Reason.BOOTSTRAP_CONFIG_REFUSED:
            return str(self.denied)
        return f"{self.denied.reason}: {self.public or _POLICY_SAYS_WHY}"

    def all_warnings(self, *, is_verified: bool) -> tuple[str, ...]:
        if self.denied is None:
            return self.warnings
        *others, last = self.warnings
        return (*others, f"{last} {self.message(is_verified=is_verified)}")


UNCONCERNED: Final = Verdict(AdmissionOutcome.UNCONCERNED)
UNCHANGED: Final = Verdict(AdmissionOutcome.UNCHANGED)


def cost(body: bytes) -> int:
    """Return how many bytes of memory a review costs at most once it is parsed; raises ``Denied``."""
    values = strict_json.bound_values(body, MAX_VALUES)
    if values is None:
        raise _malformed(f"at most {MAX_VALUES} values", "more")
    return len(body) * (1 if body.isascii() else _WIDEST) + values * _VALUE_COST


def parse(body: bytes) -> AdmissionReview:
    """Read an AdmissionReview; raises ``Denied``.

    1. Its size is bounded, and it is JSON of the one version. 2. It has a UID. 3. It has the objects of its operation.
    """
    # 1
    if len(body) > MAX_BODY:
        raise _malformed(f"at most {MAX_BODY} bytes", str(len(body)))
    cost(body)
    try:
        document = parse_json(body)
    except ParseError as error:
        raise _malformed(f"a JSON object: {error.expected}", error.found) from None
    if document.get("apiVersion") != API_VERSION or document.get("kind") != KIND:
        raise _malformed(f"{KIND} of {API_VERSION}", "another kind or version")
    # 2
    request = mapping(document, "request")
    uid = text(request, "uid")
    if not 0 < len(uid) <= _MAX_UID or not uid.isprintable():
        raise _malformed(f"request.uid of 1 to {_MAX_UID} characters", "none")
    # 3
    kind = mapping(request, "kind")
    operation = _operation(request)
    for name, needed in (("object", operation is not None), ("oldObject", operation is Operation.UPDATE)):
        if needed and not isinstance(request.get(name), dict):
            raise _malformed(f"request.{name}: an object, for {operation}", "none")
    if operation is not None and not text(kind, "kind"):
        raise _malformed("request.kind.kind", "none")
    return AdmissionReview(
        uid=uid,
        operation=operation,
        group=text(kind, "group"),
        kind=text(kind, "kind"),
        namespace=text(request, "namespace"),
        name=text(request, "name"),
        dry_run=flag(request, "dryRun"),
        target=mapping(request, "object"),
        before=mapping(request, "oldObject") if operation is Operation.UPDATE else None,
    )


def answer(uid: str, verdict: Verdict, *, is_verified: bool) -> bytes:
    """Encode a verdict: the object passes, with or without a JSON patch, or is refused with a message."""
    response: JsonObject = {"uid": uid, "allowed": verdict.passes}
    if not verdict.passes:
        status = HTTPStatus.FORBIDDEN if verdict.denied else HTTPStatus.SERVICE_UNAVAILABLE
        response["status"] = {
            "status": "Failure",
            "code": status.value,
            "reason": str(verdict.denied.reason) if verdict.denied else "ServiceUnavailable",
            "message": one_line(verdict.message(is_verified=is_verified), MAX_MESSAGE),
            "details": {} if verdict.denied else {"retryAfterSeconds": _RETRY_AFTER},
        }
    elif verdict.patch:
        encoded = json.dumps(verdict.patch, separators=(",", ":"), ensure_ascii=False).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(encoded).decode()}
    elif verdict.warnings:
        warnings = verdict.all_warnings(is_verified=is_verified)
        response["warnings"] = [one_line(warning, _MAX_WARNING) for warning in warnings]
    document: JsonObject = {"apiVersion": API_VERSION, "kind": KIND, "response": response}
    return json.dumps(document, separators=(",", ":")).encode()


def _operation(request: JsonObject) -> Operation | None:
    operation: JsonValue = request.get("operation")
    if not isinstance(operation, str) or not operation:
        raise _malformed("request.operation", "none")
    if text(request, "subResource") or operation not in set(Operation):
        return None
    return Operation(operation)


def _malformed(expected: str, got: str) -> Denied:
    return Denied(Reason.ADMISSION_REVIEW_MALFORMED, expected=expected, got=got, remedy=_REMEDY)


JsonPointer = tuple[str, ...]
"""Reference tokens, unescaped (RFC 6901)."""


def paths(before: JsonObject, after: JsonObject) -> frozenset[JsonPointer]:
    """Return where two objects differ, each time as deep as both are objects."""
    return frozenset(path for path, _, _ in _differences(before, after, ()))


def touch_each_other(one: frozenset[JsonPointer], other: frozenset[JsonPointer]) -> bool:
    """Return whether a path of one is a path of the other, or leads to one."""
    return any(a[: len(b)] == b[: len(a)] for a in one for b in other)


def patch(before: JsonObject, after: JsonObject) -> list[JsonObject]:
    """Return the operations that turn one object into the other."""
    return [_patch_operation(path, old, new) for path, old, new in _differences(before, after, ())]


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


def _patch_operation(path: JsonPointer, old: _Maybe, new: _Maybe) -> JsonObject:
    pointer = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)
    if isinstance(new, _Absent):
        return {"op": "remove", "path": pointer}
    return {"op": "add" if isinstance(old, _Absent) else "replace", "path": pointer, "value": new}
