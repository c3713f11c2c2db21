"""The HTTP server of a proxy, its limits, and the closed list of its own refusals.

Connections are kept; responses are streamed; WebSockets are possible. Unauthenticated connections, where they can be
distinguished, are few and short. A client that disconnects cancels its request. The response to a refused request
depends on the refusal alone: it quotes nothing of the request and reveals nothing about users, tokens or the upstream.
Source: companion proposal 003; RFC 9110 §15, RFC 6750 §3, RFC 6585 §4 and §5; apimachinery metav1.Status.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Final, Self

from aiohttp import HttpVersion10, HttpVersion11, web

from nodeattest_kube.periodic import RateLimiter
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits, UnauthenticatedLimits
from nodeattest_serving.http_server import HttpLimits, HttpListener, InvalidRequest, Reply, failure_status, response

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
_VERSIONS: Final = (HttpVersion11, HttpVersion10)
_HANDSHAKES: Final = 256.0
"""A second, of clients that only their handshake authenticates: each has a quarter of a second at least."""
_RETRY: Final[Mapping[HTTPStatus, str]] = {HTTPStatus.TOO_MANY_REQUESTS: "1", HTTPStatus.SERVICE_UNAVAILABLE: "5"}
"""Retry-After in seconds."""

log = logging.getLogger(__name__)


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


_INVALID: Final = {
    InvalidRequest.MALFORMED: Refusal.REQUEST_MALFORMED,
    InvalidRequest.HEADER_TOO_LARGE: Refusal.HEADERS_TOO_LARGE,
    InvalidRequest.HEADER_TOO_SLOW: Refusal.REQUEST_TOO_SLOW,
    InvalidRequest.INTERNAL_ERROR: Refusal.INTERNAL_ERROR,
}


class RefusalError(Exception):
    """A request is not forwarded."""

    def __init__(
        self, refusal: Refusal, detail: str, *, close: bool = False, headers: Mapping[str, str] | None = None
    ) -> None:
        """``detail`` is for our log and quotes nothing of the request. ``close``: close the connection."""
        super().__init__(f"{refusal}: {detail}")
        self.refusal, self.detail, self.close = refusal, detail, close
        self.status = refusal.status
        self.headers = headers or {}

    def reply(self) -> Reply:
        """Make the reply to the request."""
        retry = {"Retry-After": _RETRY[self.status]} if self.status in _RETRY else {}
        return Reply(
            status=self.status,
            body=failure_status(self.status, f"{self.status.phrase}: {self.refusal}", self.refusal.value),
            headers={"Cache-Control": "no-store", **retry, **self.headers},
        )

    def response(self) -> web.Response:
        """Make the response to the request."""
        return response(self.reply(), last=self.close)


def refusal_lines(clock: Callable[[], float]) -> RateLimiter:
    """Limit log lines about refused requests, by kind: unauthenticated clients must not fill the log."""
    return RateLimiter(burst=20, per_second=2.0, clock=clock)


class UserRequests:
    """Requests in flight, by user."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str | None] = Counter()

    @property
    def total(self) -> int:
        """Number of requests in flight."""
        return self._held.total()

    @contextmanager
    def hold(self, user: str | None) -> Generator[None]:
        """Count a request inside the context; raises ``RefusalError``. ``user``: None for unauthenticated ones."""
        if self._held[user] >= self._limit:
            raise RefusalError(Refusal.USER_BUSY, f"expected at most {self._limit} requests at once, got more")
        self._held[user] += 1
        try:
            yield
        finally:
            self._held -= Counter((user,))


ProxyRequestHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
"""Handles a request; raises ``RefusalError``."""


class ProxyServer(HttpListener):
    """One address with one handler."""

    def __init__(
        self,
        handler: ProxyRequestHandler,
        address: BindAddress,
        tls: ssl.SSLContext | None,
        limits: ProxyLimits,
        *,
        refused: Callable[[Refusal], None] = lambda _: None,
        is_unauthenticated: Callable[[asyncio.BaseTransport], bool] | None = None,
    ) -> None:
        """``tls``: None for plain HTTP. ``refused`` is called for refusals before there is a request to handle.

        ``is_unauthenticated`` says of a connection that its client is not authenticated; None: not known of any
        connection.
        """
        self._proxy = handler
        self._refused = refused
        unauthenticated = None
        if is_unauthenticated is not None:
            unauthenticated = UnauthenticatedLimits(
                is_unauthenticated=is_unauthenticated,
                connections=limits.unauthenticated_connections,
                handshakes=_HANDSHAKES,
            )

        def lifetime(connection: asyncio.Transport) -> float | None:
            is_short = is_unauthenticated is not None and is_unauthenticated(connection)
            return limits.unauthenticated_seconds if is_short else None

        super().__init__(
            self._answer,
            address,
            tls,
            # Who connects is a proxy, and all its users come from one address: no lower limit of one client.
            ConnectionLimits(connections=limits.connections, connections_of_client=limits.connections),
            HttpLimits(
                line=MAX_LINE,
                field=MAX_FIELD,
                fields=MAX_FIELDS,
                head=MAX_HEAD,
                header_seconds=limits.header_seconds,
                idle_seconds=limits.idle_seconds,
                unread_seconds=limits.unread_seconds,
            ),
            refuse=self._refuse,
            lifetime=lifetime,
            handler_cancellation=True,
            unauthenticated=unauthenticated,
        )

    def _refuse(self, kind: InvalidRequest) -> Reply:
        return self._refusal(_INVALID[kind], "expected HTTP/1.1, got something else").reply()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to one request; an unexpected error is a 500, and logged."""
        try:
            # aiohttp accepts other versions, and limits no more than each field
            if request.version not in _VERSIONS:
                return self._refusal(Refusal.REQUEST_MALFORMED, "expected HTTP/1.1 or 1.0").response()
            if sum(len(name) + len(value) for name, value in request.raw_headers) > MAX_HEAD:
                detail = f"expected at most {MAX_HEAD} bytes of header"
                return self._refusal(Refusal.HEADERS_TOO_LARGE, detail).response()
            return await self._proxy(request)
        except RefusalError as error:
            return error.response()
        except Exception as error:
            transport = request.transport
            if isinstance(error, ConnectionError) and (transport is None or transport.is_closing()):
                raise  # the client has gone
            log.exception("internal error while answering a request")
            return RefusalError(Refusal.INTERNAL_ERROR, "a bug", close=True).response()

    def _refusal(self, refusal: Refusal, detail: str) -> RefusalError:
        self._refused(refusal)
        return RefusalError(refusal, detail, close=True)
