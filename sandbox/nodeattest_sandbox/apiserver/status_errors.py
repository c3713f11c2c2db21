"""The refusals of an API server, as Kubernetes ``Status`` objects.

Promises: the same code, reason, message and details as kube-apiserver gives for the same mistake.
Source: k8s.io/apimachinery/pkg/api/errors/errors.go, pkg/util/validation/field/errors.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue


@dataclass(frozen=True, slots=True)
class Cause:
    """One field that validation refused."""

    reason: str
    message: str
    field: str


class ApiError(Exception):
    """A refused request; ``status`` is the body that the client gets."""

    def __init__(self, code: int, reason: str, message: str, details: JsonMap | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status: JsonMap = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            **({"details": details} if details is not None else {}),
            "code": code,
        }


def qualified(group: str, resource: str) -> str:
    """Return ``resource.group``, or the bare resource of the core group."""
    return f"{resource}.{group}" if group else resource


def _details(group: str, kind: str, name: str) -> JsonMap:
    details: JsonMap = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    details["kind"] = kind
    return details


def not_found(group: str, resource: str, name: str) -> ApiError:
    """Say that there is no object of this name."""
    message = f'{qualified(group, resource)} "{name}" not found'
    return ApiError(404, "NotFound", message, _details(group, resource, name))


def unknown_path() -> ApiError:
    """Say that nothing is served at this path."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(group: str, resource: str, name: str) -> ApiError:
    """Refuse a second object of the same name."""
    message = f'{qualified(group, resource)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _details(group, resource, name))


def conflict(group: str, resource: str, name: str, why: str = "") -> ApiError:
    """Refuse a write that was based on another version of the object."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {qualified(group, resource)} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(group, resource, name))


def forbidden(group: str, resource: str, name: str, why: str) -> ApiError:
    """Refuse what authorization or admission does not allow."""
    subject = f'{qualified(group, resource)} "{name}"' if name else qualified(group, resource)
    message = f"{subject} is forbidden: {why}" if resource else f"forbidden: {why}"
    return ApiError(403, "Forbidden", message, _details(group, resource, name) if resource else {})


def unauthorized() -> ApiError:
    """Refuse credentials that were given and did not hold."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def bad_request(message: str) -> ApiError:
    """Refuse a request that cannot be read."""
    return ApiError(400, "BadRequest", message)


def method_not_allowed() -> ApiError:
    """Refuse a verb that the resource does not serve."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media_type(accepted: str) -> ApiError:
    """Refuse a body in a form that is not served."""
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return ApiError(415, "UnsupportedMediaType", message, {})


def expired(message: str) -> ApiError:
    """Tell the client that its resourceVersion or continue token is too old."""
    return ApiError(410, "Expired", message)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """Refuse an object for the fields that are wrong in it."""
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    said = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    fields: list[JsonValue] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    details: JsonMap = {**_details(group, kind, name), "causes": fields}
    return ApiError(422, "Invalid", f'{qualified(group, kind)} "{name}" is invalid: {said}', details)


def invalid_field(field: str, value: str, why: str) -> Cause:
    """Say that the value is not of the right form."""
    return Cause("FieldValueInvalid", f"Invalid value: {value}: {why}", field)


def forbidden_field(field: str, why: str) -> Cause:
    """Say that the value may not be changed so."""
    return Cause("FieldValueForbidden", f"Forbidden: {why}", field)
