"""GET requests to the Compute API; whatever goes wrong is ``Unavailable`` and holds neither token nor answer.

Source: Google, "Compute Engine API: errors" (``error.errors[].reason``), "API rate limits".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from nodeattest_providers.cloud_http import CloudHttp, CloudResponse, ExchangeError, ResponseLimits, retry_after_seconds
from nodeattest_providers.errors import Unavailable, platform_unavailable
from nodeattest_providers.gcp.api.tokens import Tokens, trust
from nodeattest_providers.gcp.config import GcpPlatform
from nodeattest_providers.platform import CallOutcome, ObserveCall

_SERVICE: Final = "compute"
_LIMITS: Final = ResponseLimits(seconds=10.0, answer_bytes=4 * 1024 * 1024, connections=64)
"""The time is half of the controller's default ``verificationTimeout``; fifty instances have some 100 KiB."""
_THROTTLED_FOR: Final = 15.0
_LONGEST_WAIT: Final = 120.0
"""Seconds."""
_QUOTA: Final = (b"rateLimitExceeded", b"RATE_LIMIT_EXCEEDED", b"quotaExceeded", b"userRateLimitExceeded")
"""Why a 403 of the Compute API is none of permissions."""


class Api:
    """One session with the Compute API; it belongs to the event loop that first used it."""

    def __init__(self, settings: GcpPlatform, observe: ObserveCall) -> None:
        self._settings = settings
        self._observe = observe
        self._tokens = Tokens(settings, observe)
        self._http = CloudHttp(trust=lambda: trust(settings), proxy=settings.proxy, limits=_LIMITS)

    async def get(self, path: str, parameters: Mapping[str, str]) -> bytes | None:
        """Get a document; None where there is no such thing; raises Unavailable."""
        token = await self._tokens.token()
        answer = await self._ask(path, parameters, token)
        if answer.status == HTTPStatus.UNAUTHORIZED:  # revoked, or of a clock that is wrong: once more with another
            self._tokens.forget(token)
            answer = await self._ask(path, parameters, await self._tokens.token())
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if _outcome(answer) is not CallOutcome.OK:
            raise _refusal(answer)
        return answer.body

    async def aclose(self) -> None:
        """Close the connections."""
        await self._tokens.aclose()
        await self._http.aclose()

    async def _ask(self, path: str, parameters: Mapping[str, str], token: str) -> CloudResponse:
        started = time.monotonic()
        outcome = CallOutcome.FAILED
        headers = {"Authorization": f"Bearer {token}"}
        try:
            answer = await self._http.exchange(
                "GET", self._settings.compute + path, parameters=parameters, headers=headers
            )
            outcome = _outcome(answer)
        except ExchangeError as error:
            outcome = error.outcome
            raise platform_unavailable(
                f"the Compute API at {self._settings.compute} {error}",
                remedy="wait; if this stays, check platforms.gcp.endpoints, caBundle and proxy of the controller",
            ) from None
        finally:
            self._observe(_SERVICE, outcome, time.monotonic() - started)
        return answer


def _outcome(answer: CloudResponse) -> CallOutcome:
    match answer.status:
        case HTTPStatus.OK if answer.body.lstrip().startswith(b"{"):
            return CallOutcome.OK
        case HTTPStatus.TOO_MANY_REQUESTS:
            return CallOutcome.THROTTLED
        case HTTPStatus.FORBIDDEN if any(word in answer.body for word in _QUOTA):
            return CallOutcome.THROTTLED
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN | HTTPStatus.NOT_FOUND:
            return CallOutcome.REFUSED
        case _:
            return CallOutcome.FAILED


def _refusal(answer: CloudResponse) -> Unavailable:
    match _outcome(answer):
        case CallOutcome.THROTTLED:
            what, remedy, wait = (
                "throttles",
                "wait; if this stays, raise the project's Compute read quota",
                retry_after_seconds(answer.retry_after, default=_THROTTLED_FOR, longest=_LONGEST_WAIT),
            )
        case CallOutcome.REFUSED:
            what = "refuses the controller"
            remedy = (
                "grant the controller's service account compute.instances.list and "
                "compute.instances.getShieldedInstanceIdentity in this project"
            )
            wait = 30.0
        case _:
            what, remedy, wait = (
                "failed",
                "wait; if this stays, see Google Cloud's status and the controller's log",
                5.0,
            )
    detail = f"the Compute API {what} (HTTP status {answer.status})"
    return platform_unavailable(detail, remedy=remedy, retry_after=wait)
