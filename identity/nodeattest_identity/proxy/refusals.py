"""Why the proxy responds itself: a closed list for responses, logs, metrics and docs. Pure.

Promises: each refusal has one status. The response depends on the refusal alone: it quotes nothing of the request and
reveals nothing about users, tokens or the upstream.
Source: companion proposal 003; RFC 9110 §15, RFC 6750 §3, RFC 6585 §4 and §5; apimachinery metav1.Status.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Final, Self

from aiohttp import web

from nodeattest_serving.http_server import Reply, failure_status, response

_RETRY: Final[Mapping[HTTPStatus, str]] = {HTTPStatus.TOO_MANY_REQUESTS: "1", HTTPStatus.SERVICE_UNAVAILABLE: "5"}
"""Retry-After in seconds."""


class Refusal(StrEnum):
    """The reason, as in responses, logs and metrics, and the default status."""

    status: HTTPStatus

    def __new__(cls, value: str, status: HTTPStatus) -> Self:
        """Make a member."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.status = status
        return member

    # The request itself
    REQUEST_MALFORMED = "RequestMalformed", HTTPStatus.BAD_REQUEST
    HEADERS_TOO_LARGE = "HeadersTooLarge", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    HEADER_NOT_ALLOWED = "HeaderNotAllowed", HTTPStatus.BAD_REQUEST
    PATH_NOT_ALLOWED = "PathNotAllowed", HTTPStatus.BAD_REQUEST
    METHOD_NOT_ALLOWED = "MethodNotAllowed", HTTPStatus.NOT_IMPLEMENTED
    EXPECTATION_NOT_ALLOWED = "ExpectationNotAllowed", HTTPStatus.EXPECTATION_FAILED
    UPGRADE_MALFORMED = "UpgradeMalformed", HTTPStatus.BAD_REQUEST
    UPGRADE_NOT_ALLOWED = "UpgradeNotAllowed", HTTPStatus.NOT_IMPLEMENTED
    BODY_TOO_LARGE = "BodyTooLarge", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    REQUEST_TOO_SLOW = "RequestTooSlow", HTTPStatus.REQUEST_TIMEOUT
    # The caller
    CREDENTIALS_MISSING = "CredentialsMissing", HTTPStatus.UNAUTHORIZED
    CREDENTIALS_AMBIGUOUS = "CredentialsAmbiguous", HTTPStatus.BAD_REQUEST
    CREDENTIALS_REFUSED = "CredentialsRefused", HTTPStatus.UNAUTHORIZED
    USER_NOT_ALLOWED = "UserNotAllowed", HTTPStatus.FORBIDDEN
    USER_BUSY = "UserBusy", HTTPStatus.TOO_MANY_REQUESTS
    # Proxy and upstream
    VERIFICATION_UNAVAILABLE = "VerificationUnavailable", HTTPStatus.SERVICE_UNAVAILABLE
    UPSTREAM_UNREACHABLE = "UpstreamUnreachable", HTTPStatus.BAD_GATEWAY
    UPSTREAM_MALFORMED = "UpstreamMalformed", HTTPStatus.BAD_GATEWAY
    UPSTREAM_TOO_SLOW = "UpstreamTooSlow", HTTPStatus.GATEWAY_TIMEOUT
    TIME_OVER = "TimeOver", HTTPStatus.GATEWAY_TIMEOUT
    INTERNAL_ERROR = "InternalError", HTTPStatus.INTERNAL_SERVER_ERROR


class RefusalError(Exception):
    """A request is not forwarded."""

    def __init__(
        self, refusal: Refusal, detail: str, *, close: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        """``detail`` is for our log and quotes nothing of the request. ``close``: close the connection."""
        super().__init__(f"{refusal}: {detail}")
        self.refusal = refusal
        self.detail = detail
        self.close = close
        self.status = refusal.status
        self.headers = headers or {}


def reply(refused: RefusalError) -> Reply:
    """Make the reply to a request that is not forwarded."""
    status = refused.status
    retry = {"Retry-After": _RETRY[status]} if status in _RETRY else {}
    return Reply(
        status=status,
        body=failure_status(status, f"{status.phrase}: {refused.refusal}", refused.refusal.value),
        headers={"Cache-Control": "no-store", **retry, **refused.headers},
    )


def answer(refused: RefusalError) -> web.Response:
    """Make the response to a request that is not forwarded."""
    return response(reply(refused), last=refused.close)
