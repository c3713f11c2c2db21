"""The error of a request that the gateway answers itself, as a ``Status`` of the API conventions.

Promises: a message quotes nothing of the request. Source: apimachinery metav1.Status and StatusError.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_parsing.values import one_line
from nodeattest_serving.replies import Reply, failure_status, response

_NONE: Final[Mapping[str, str]] = {}
_REASONS: Final[dict[HTTPStatus, str]] = {
    HTTPStatus.BAD_REQUEST: "BadRequest",
    HTTPStatus.UNAUTHORIZED: "Unauthorized",
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.NOT_FOUND: "NotFound",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowed",
    HTTPStatus.NOT_ACCEPTABLE: "NotAcceptable",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "RequestEntityTooLarge",
    HTTPStatus.TOO_MANY_REQUESTS: "TooManyRequests",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalError",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
    HTTPStatus.GATEWAY_TIMEOUT: "Timeout",
}
"""StatusReasons of apimachinery, where a status without one has an empty reason, too."""
_MAX_MESSAGE: Final = 512
"""Characters."""


class StatusError(Exception):
    """A request that is not forwarded."""

    def __init__(self, status: HTTPStatus, message: str, headers: Mapping[str, str] = _NONE) -> None:
        super().__init__(f"{status.value}: {message}")
        self.status = status
        self.message = message
        self.headers = headers


def status_body(error: StatusError) -> bytes:
    """Write the ``Status`` object."""
    message = one_line(error.message, _MAX_MESSAGE)
    return failure_status(error.status, message, _REASONS.get(error.status, ""))


def status_response(error: StatusError) -> web.Response:
    """Make the response."""
    headers = {"Cache-Control": "no-store", **error.headers}
    return response(Reply(status=error.status, body=status_body(error), headers=headers), last=False)
