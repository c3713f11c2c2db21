"""Why the proxy responds itself: a closed list for responses, logs, metrics and docs. Pure.

Promises: each refusal has one status. The response depends on the refusal alone: it quotes nothing of the request and
reveals nothing about users, tokens or the upstream.
Source: companion proposal 003; RFC 9110 §15, RFC 6750 §3, RFC 6585 §4 and §5; apimachinery metav1.Status.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_serving.replies import Reply, failure_status, response

_NO_HEADERS: Final[Mapping[str, str]] = {}


class Refusal(StrEnum):
    """The reason; its value is in responses, logs and metrics."""

    # The request itself
    REQUEST_MALFORMED = "RequestMalformed"
    HEADERS_TOO_LARGE = "HeadersTooLarge"
    HEADER_NOT_ALLOWED = "HeaderNotAllowed"
    PATH_NOT_ALLOWED = "PathNotAllowed"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    EXPECTATION_NOT_ALLOWED = "ExpectationNotAllowed"
    UPGRADE_MALFORMED = "UpgradeMalformed"
    UPGRADE_NOT_ALLOWED = "UpgradeNotAllowed"
    BODY_TOO_LARGE = "BodyTooLarge"
    REQUEST_TOO_SLOW = "RequestTooSlow"
    # The caller
    CREDENTIALS_MISSING = "CredentialsMissing"
    CREDENTIALS_AMBIGUOUS = "CredentialsAmbiguous"
    CREDENTIALS_REFUSED = "CredentialsRefused"
    USER_NOT_ALLOWED = "UserNotAllowed"
    USER_BUSY = "UserBusy"
    # Proxy and upstream
    VERIFICATION_UNAVAILABLE = "VerificationUnavailable"
    UPSTREAM_UNREACHABLE = "UpstreamUnreachable"
    UPSTREAM_MALFORMED = "UpstreamMalformed"
    UPSTREAM_TOO_SLOW = "UpstreamTooSlow"
    TIME_OVER = "TimeOver"
    INTERNAL_ERROR = "InternalError"


STATUS: Final[Mapping[Refusal, HTTPStatus]] = {
    Refusal.REQUEST_MALFORMED: HTTPStatus.BAD_REQUEST,
    Refusal.HEADERS_TOO_LARGE: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    Refusal.HEADER_NOT_ALLOWED: HTTPStatus.BAD_REQUEST,
    Refusal.PATH_NOT_ALLOWED: HTTPStatus.BAD_REQUEST,
    Refusal.METHOD_NOT_ALLOWED: HTTPStatus.NOT_IMPLEMENTED,
    Refusal.EXPECTATION_NOT_ALLOWED: HTTPStatus.EXPECTATION_FAILED,
    Refusal.UPGRADE_MALFORMED: HTTPStatus.BAD_REQUEST,
    Refusal.UPGRADE_NOT_ALLOWED: HTTPStatus.NOT_IMPLEMENTED,
    Refusal.BODY_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Refusal.REQUEST_TOO_SLOW: HTTPStatus.REQUEST_TIMEOUT,
    Refusal.CREDENTIALS_MISSING: HTTPStatus.UNAUTHORIZED,
    Refusal.CREDENTIALS_AMBIGUOUS: HTTPStatus.BAD_REQUEST,
    Refusal.CREDENTIALS_REFUSED: HTTPStatus.UNAUTHORIZED,
    Refusal.USER_NOT_ALLOWED: HTTPStatus.FORBIDDEN,
    Refusal.USER_BUSY: HTTPStatus.TOO_MANY_REQUESTS,
    Refusal.VERIFICATION_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Refusal.UPSTREAM_UNREACHABLE: HTTPStatus.BAD_GATEWAY,
    Refusal.UPSTREAM_MALFORMED: HTTPStatus.BAD_GATEWAY,
    Refusal.UPSTREAM_TOO_SLOW: HTTPStatus.GATEWAY_TIMEOUT,
    Refusal.TIME_OVER: HTTPStatus.GATEWAY_TIMEOUT,
    Refusal.INTERNAL_ERROR: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""Default status; ``--deny-status`` replaces some."""
_RETRY: Final[Mapping[HTTPStatus, str]] = {
    HTTPStatus.TOO_MANY_REQUESTS: "1",
    HTTPStatus.SERVICE_UNAVAILABLE: "5",
}
"""Retry-After in seconds."""


class RefusalError(Exception):
    """A request is not forwarded.

    ``detail`` is for our log and quotes nothing of the request. ``close``: close the connection. ``status`` and
    ``headers`` replace and complete the defaults.
    """

    def __init__(
        self,
        refusal: Refusal,
        detail: str,
        *,
        close: bool = False,
        status: HTTPStatus | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        super().__init__(f"{refusal}: {detail}")
        self.refusal = refusal
        self.detail = detail
        self.close = close
        self.status = status or STATUS[refusal]
        self.headers = headers


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
