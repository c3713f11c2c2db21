"""The error of a request that the gateway answers itself, as a ``Status`` of the API conventions.

Promises: a message quotes nothing of the request. Source: apimachinery metav1.Status and StatusError.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web

from nodeattest_serving.http_server import Reply, failure_status, response


class StatusError(Exception):
    """A request that is not forwarded."""

    def __init__(self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status.value}: {message}")
        self.status = status
        self.message = message
        self.headers = headers or {}


def status_body(error: StatusError) -> bytes:
    """Write the ``Status`` object; apimachinery's reasons for these statuses are their phrases without blanks."""
    return failure_status(error.status, error.message, error.status.phrase.replace(" ", ""))


def status_response(error: StatusError) -> web.Response:
    """Make the response."""
    headers = {"Cache-Control": "no-store", **error.headers}
    return response(Reply(status=error.status, body=status_body(error), headers=headers), last=False)
