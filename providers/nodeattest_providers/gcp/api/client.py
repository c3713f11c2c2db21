"""GET requests to the Compute API.

Promises: HTTPS to the configured endpoint only; time and size limits; no redirect, no proxy from the environment, no
cookies; each request is counted with its outcome; whatever goes wrong is ``Unavailable`` with a remedy, and holds
neither token nor answer.
Leaves to others: what to ask and what it means (``api.compute``).
Source: Google, "Compute Engine API: errors" (``error.errors[].reason``) and "API rate limits".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import aiohttp

from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.gcp.api.tokens import Tokens, trust
from nodeattest_providers.gcp.config import GcpPlatform
from nodeattest_providers.platform import CallOutcome, ObserveCall

__all__ = ["Api"]

_SERVICE: Final = "compute"
_TIMEOUT: Final = 10.0
"""Seconds for a whole request; half of the controller's default ``verificationTimeout``."""
_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of an answer; fifty instances have some 100 KiB."""
_CONNECTIONS: Final = 64
_THROTTLED_FOR: Final = 15.0
_LONGEST_WAIT: Final = 120.0
"""Seconds."""
_QUOTA: Final = (b"rateLimitExceeded", b"RATE_LIMIT_EXCEEDED", b"quotaExceeded", b"userRateLimitExceeded")
"""Why a 403 of the Compute API is none of permissions."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    retry_after: str
    body: bytes


class Api:
    """One session with the Compute API; it belongs to the event loop that first used it."""

    def __init__(self, settings: GcpPlatform, observe: ObserveCall) -> None:
        self._settings = settings
        self._observe = observe
        self._tokens = Tokens(settings, observe)
        self._session: aiohttp.ClientSession | None = None

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
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, path: str, parameters: Mapping[str, str], token: str) -> _Answer:
        started = time.monotonic()
        outcome, problem = CallOutcome.FAILED, "gave no whole answer"
        try:
            answer = await self._send(path, parameters, token)
            outcome = _outcome(answer)
        except TimeoutError:
            outcome, problem = CallOutcome.TIMED_OUT, f"did not answer within {_TIMEOUT:g} s"
        except aiohttp.ClientConnectionError as error:
            # ClientConnectorCertificateError and its kin are of this class, too
            outcome, problem = CallOutcome.UNREACHABLE, f"cannot be reached ({type(error).__name__})"
        except (aiohttp.ClientError, ValueError) as error:
            problem = f"gave no whole answer ({type(error).__name__})"
        else:
            return answer
        finally:
            self._observe(_SERVICE, outcome, time.monotonic() - started)
        raise Unavailable(
            Reason.PLATFORM_UNAVAILABLE,
            f"the Compute API at {self._settings.compute} {problem}",
            remedy="wait; if this stays, check platforms.gcp.endpoints, caBundle and proxy of the controller",
        )

    async def _send(self, path: str, parameters: Mapping[str, str], token: str) -> _Answer:
        async with self._opened().get(
            self._settings.compute + path,
            params=parameters,
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            allow_redirects=False,
            proxy=self._settings.proxy,
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(65536):
                body += chunk
                if len(body) > _LIMIT:
                    raise ValueError("too large an answer")
            return _Answer(response.status, response.headers.get("Retry-After", ""), bytes(body))

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trust(self._settings), limit=_CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


def _outcome(answer: _Answer) -> CallOutcome:
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


def _refusal(answer: _Answer) -> Unavailable:
    match _outcome(answer):
        case CallOutcome.THROTTLED:
            what, remedy, wait = (
                "throttles",
                "wait; if this stays, raise the project's Compute read quota",
                _wait(answer),
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
    return Unavailable(Reason.PLATFORM_UNAVAILABLE, detail, remedy=remedy, retry_after=wait)


def _wait(answer: _Answer) -> float:
    """Heed Retry-After where it is seconds (RFC 9110 §10.2.3)."""
    text = answer.retry_after
    seconds = float(text) if text.isascii() and text.isdigit() and len(text) < 6 else _THROTTLED_FOR  # noqa: PLR2004 - a day's seconds
    return min(max(seconds, 1.0), _LONGEST_WAIT)
