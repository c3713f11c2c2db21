"""What an API server, or the way to it, can answer instead of the object asked for.

Messages are bounded, printable, and hold no credentials.
Source: apimachinery ``metav1.Status`` and its ``StatusReason`` constants (pkg/apis/meta/v1/types.go).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from nodeattest_parsing.objects import dig, text
from nodeattest_parsing.values import JsonObject, one_line

_MESSAGE_LIMIT: Final = 512
"""Characters kept of a server's message: enough for an operator, too few to flood a log."""
_LONGEST_RETRY_AFTER: Final = 300.0
"""Seconds; a server that asks for more is asked again after this much."""


class KubeconfigError(ValueError):
    """A kubeconfig that cannot be used; never quotes a credential."""

    def __init__(self, *, expected: str, got: str, remedy: str) -> None:
        super().__init__(f"kubeconfig: expected {expected}, got {got}; {remedy}")
        self.expected, self.got, self.remedy = expected, got, remedy


class ApiError(Exception):
    """An API server's refusal, or (status 0) no answer at all.

    ``reason`` is the server's StatusReason; ``retry_after`` its wish in seconds, if it has one.
    """

    def __init__(self, status: int, reason: str, message: str, *, retry_after: float | None = None) -> None:
        message = one_line(message, _MESSAGE_LIMIT)
        super().__init__(f"{status} {reason}: {message}" if status else f"{reason}: {message}")
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after


class Unauthorized(ApiError):
    """401: the credential is not accepted (expired, revoked, of another cluster)."""


class Forbidden(ApiError):
    """403: authorization or admission said no."""


class NotFound(ApiError):
    """404: no such object, or no such resource on this server."""


class Conflict(ApiError):
    """409: the object changed since it was read, or a precondition failed."""


class AlreadyExists(ApiError):
    """409: an object of this name exists."""


class Gone(ApiError):
    """410: the resourceVersion or the continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object fails validation."""


class TooManyRequests(ApiError):
    """429: come back after ``retry_after`` seconds."""


class Malformed(ApiError):
    """The answer is no Kubernetes JSON (a proxy's page, a cut body); whether a write happened is unknown."""


class TooLarge(Malformed):
    """The answer is larger than we are willing to hold; whether a write happened is unknown."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, "TooLarge", message)


class Unreachable(ApiError):
    """Status 0: DNS, TCP, TLS, a time limit, a reset; whether a write happened is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


class TimedOut(Unreachable):
    """An answer began, and did not end within its time limit."""


class WatchHung(Unreachable):
    """A watch did not end in the time that it was asked to last; what it did not show is unknown."""


_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def error_from_status(status: int, answer: JsonObject, *, fallback: str, retry_after: str = "") -> ApiError:
    """Turn a ``Status`` object (or ``{}``) into the exception; ``retry_after`` is the header's value."""
    reason = text(answer, "reason") or fallback
    exists = status == HTTPStatus.CONFLICT and reason == "AlreadyExists"
    kind = AlreadyExists if exists else _BY_STATUS.get(status, ApiError)
    delay = _seconds(retry_after)
    if delay is None:
        delay = _seconds(dig(answer, "details", "retryAfterSeconds"))
    return kind(status, one_line(reason, _MESSAGE_LIMIT), text(answer, "message") or fallback, retry_after=delay)


def _seconds(value: object) -> float | None:
    """Read whole seconds (RFC 9110 §10.2.3; Kubernetes never sends the date form)."""
    text = str(value)
    if not text.isascii() or not text.isdigit() or text == "0":
        return None
    return min(float(text[:9]), _LONGEST_RETRY_AFTER)
