"""The limits of a proxy, and the closed list of its own refusals.

The response depends on the refusal alone: it quotes nothing of the request, and says nothing about users, tokens or the
upstream.
Source: companion proposal 003; RFC 9110 §15, RFC 6750 §3, RFC 6585 §4 and §5; apimachinery metav1.Status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Final, Self

from aiohttp import web

from nodeattest_serving.http_server import Reply, failure_status, response

CONNECTION_BYTES: Final = 300 * 1024
"""Memory of one TLS connection, nearly all of it TLS buffers."""
STALLED_BYTES: Final = 2200 * 1024
"""Measured memory of a stream whose client does not read, with TLS to client and upstream."""
MAX_LINE: Final = 8190
"""Bytes of a request line."""
MAX_FIELD: Final = 8190
"""Bytes of one header field."""
MAX_FIELDS: Final = 128
MAX_HEAD: Final = 32 * 1024
"""Bytes of request line and header together."""
_RETRY: Final[Mapping[HTTPStatus, str]] = {HTTPStatus.TOO_MANY_REQUESTS: "1", HTTPStatus.SERVICE_UNAVAILABLE: "5"}
"""Retry-After in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """Configurable limits; seconds are of a monotonic clock."""

    connections: int = 4096
    """At once, without unauthenticated ones; an idle one costs some 25 KiB, with TLS ``CONNECTION_BYTES``."""
    unauthenticated_connections: int = 64
    """At once, in addition, handshakes in progress included: others than the front proxy only get documents."""
    unauthenticated_seconds: float = 15.0
    """Lifetime of an unauthenticated connection: to fetch a document takes milliseconds."""
    upstream_connections: int = 4096
    """To all upstreams at once."""
    header_seconds: float = 10.0
    """From the first byte of a request, or of a connection, to the end of its header."""
    idle_seconds: float = 120.0
    """Between two requests of a connection: longer than kube-apiserver keeps an idle one (90 s, client-go)."""
    body_idle_seconds: float = 30.0
    """Between two pieces of a request's body."""
    unread_seconds: float = 30.0
    """How long a response of our own waits for a client that does not read."""
    forwarded_unread_seconds: float = 120.0
    """The same for a forwarded response or WebSocket, whose client may be busy for a while."""
    connect_seconds: float = 5.0
    """To reach the upstream."""
    answer_seconds: float = 60.0
    """From the end of a request's body to the upstream's response header."""
    request_seconds: float = 3600.0
    """For a whole request, streamed response or WebSocket: a revoked credential ends by then."""
    max_body: int | None = None
    """Bytes of a request's body; None: the upstream decides."""


class Refusal(StrEnum):
    """The reason, as in responses, logs and metrics, and the default status."""

    status: HTTPStatus

    def __new__(cls, value: str, status: HTTPStatus) -> Self:
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
        self,
        refusal: Refusal | HTTPStatus,
        detail: str,
        *,
        close: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``detail`` quotes nothing of the request. It is for our log only; with an HTTP status it is also sent.

        ``close``: close the connection.
        """
        super().__init__(f"{refusal:d}: {detail}" if isinstance(refusal, HTTPStatus) else f"{refusal}: {detail}")
        self.refusal, self.detail, self.close = refusal, detail, close
        self.status = refusal if isinstance(refusal, HTTPStatus) else refusal.status
        self.headers = headers or {}

    @property
    def reason(self) -> str:
        """The reason in the ``Status``; apimachinery's are the phrases of the statuses without blanks."""
        return self.status.phrase.replace(" ", "") if isinstance(self.refusal, HTTPStatus) else self.refusal.value

    def reply(self) -> Reply:
        is_public = isinstance(self.refusal, HTTPStatus)
        message = self.detail if is_public else f"{self.status.phrase}: {self.refusal}"
        retry = {"Retry-After": _RETRY[self.status]} if self.status in _RETRY else {}
        return Reply(
            status=self.status,
            body=failure_status(self.status, message, self.reason),
            headers={"Cache-Control": "no-store", **retry, **self.headers},
        )

    def response(self) -> web.Response:
        return response(self.reply(), last=self.close)
