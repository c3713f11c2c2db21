"""Replies of a listener, as bytes. Pure.

Every refusal with one status is the same bytes, whatever its cause.
Source: apimachinery metav1.Status.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from nodeattest_kube.jsontypes import JsonObject

__all__ = ["Reply", "refusal"]

_NO_HEADERS: Final[Mapping[str, str]] = {}
_SAID: Final[dict[HTTPStatus, tuple[str, Mapping[str, str]]]] = {
    HTTPStatus.BAD_REQUEST: ("BadRequest", {}),
    HTTPStatus.UNAUTHORIZED: ("Unauthorized", {"WWW-Authenticate": "Bearer"}),
    HTTPStatus.NOT_FOUND: ("NotFound", {}),
    HTTPStatus.METHOD_NOT_ALLOWED: ("MethodNotAllowed", {}),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("RequestEntityTooLarge", {}),
    HTTPStatus.TOO_MANY_REQUESTS: ("TooManyRequests", {"Retry-After": "1"}),
    HTTPStatus.INTERNAL_SERVER_ERROR: ("InternalError", {}),
    HTTPStatus.SERVICE_UNAVAILABLE: ("ServiceUnavailable", {"Retry-After": "5"}),
}
"""StatusReason and headers of each refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One HTTP answer with a JSON body."""

    status: HTTPStatus
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    written: Callable[[], None] = lambda: None
    """Called once when it was written, or when its connection ended before."""


def refusal(status: HTTPStatus, headers: Mapping[str, str] = _NO_HEADERS) -> Reply:
    """Make the refusal that an API server would send: a ``Status``."""
    reason, usual = _SAID[status]
    said: JsonObject = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": status.phrase,
        "reason": reason,
        "code": status.value,
    }
    return Reply(status=status, body=_text(said), headers={**usual, **headers})


def _text(value: JsonObject) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
