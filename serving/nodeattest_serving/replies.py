"""Replies of a server, as bytes. Pure.

Every refusal with one status is the same bytes, whatever its cause.
Source: apimachinery metav1.Status.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, TypeVar

from aiohttp import web

from nodeattest_parsing.values import JsonObject

_NO_HEADERS: Final[Mapping[str, str]] = {}
USUAL_HEADERS: Final = {
    "Content-Type": "application/json",
    "Cache-Control": "no-cache, private",
    "X-Content-Type-Options": "nosniff",
    "Server": "nodeattest",
}
"""Headers of each reply that says nothing else."""
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

_R = TypeVar("_R", bound=web.Response)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One HTTP answer, with a JSON body unless its headers say otherwise."""

    status: HTTPStatus
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    written: Callable[[], None] = lambda: None
    """Called once when it was written, or when its connection ended before."""


def refusal(status: HTTPStatus, headers: Mapping[str, str] = _NO_HEADERS) -> Reply:
    """Make the refusal that an API server would send: a ``Status``."""
    reason, usual = _SAID[status]
    return Reply(status=status, body=failure_status(status, status.phrase, reason), headers={**usual, **headers})


def failure_status(status: HTTPStatus, message: str, reason: str) -> bytes:
    """Write a ``Status`` object of a failure."""
    said: JsonObject = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status.value,
    }
    return json.dumps(said, separators=(",", ":")).encode()


def response(reply: Reply, *, last: bool, kind: type[_R] = web.Response) -> _R:
    """Convert a reply to aiohttp's response; ``last``: the connection ends after it."""
    made = kind(status=reply.status, body=reply.body, headers={**USUAL_HEADERS, **reply.headers})
    if last:
        made.force_close()
    return made


def raw_response(reply: Reply) -> bytes:
    """Write the last response of a connection, to a request that is not complete."""
    status = reply.status
    fields = {**USUAL_HEADERS, **reply.headers, "Content-Length": str(len(reply.body)), "Connection": "close"}
    lines = (f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in fields.items()))
    return "\r\n".join((*lines, "", "")).encode() + reply.body
