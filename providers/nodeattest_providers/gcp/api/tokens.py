"""Access tokens for the Compute API, from google-auth, which blocks and so runs in a thread.

Its requests go through ``cloud_http``. No message holds a token, a key or what the authorisation server said.
Source: google-auth's ``google.auth.transport.Request``; Google, "Application Default Credentials".
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from nodeattest_providers.cloud_http import CloudHttp, ExchangeError, SingleFlight
from nodeattest_providers.errors import Denied, platform_unavailable
from nodeattest_providers.gcp.config import GcpPlatform, credential_source, read_credentials
from nodeattest_providers.platform import CallOutcome, ObserveCall

_SCOPES: Final = ("https://www.googleapis.com/auth/compute.readonly",)
_WHOLE: Final = 10.0
"""Seconds for a request; google-auth tries up to three times."""
_GRACE: Final = 5.0
"""Seconds after which the thread waits no longer for a loop that has ended."""
_LIMIT: Final = 64 * 1024
"""Bytes of an answer; tokens have some 2 KiB."""


def trust(settings: GcpPlatform) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=settings.authorities)


@dataclass(frozen=True, slots=True)
class _Response:
    """What google-auth expects of an answer."""

    status: int
    headers: Mapping[str, str]
    data: bytes = field(repr=False)


class _Transport:
    """Sends google-auth's requests, which come from its thread, by the client of the loop."""

    def __init__(self, http: CloudHttp, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._http, self._loop, self._seconds = http, loop, seconds

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: object,
    ) -> _Response:
        """Send one request, whatever the status; raises google-auth's TransportError where no answer came."""
        from google.auth.exceptions import TransportError

        exchange = self._http.exchange(method, url, headers=headers or {}, body=body)
        try:
            answer = asyncio.run_coroutine_threadsafe(exchange, self._loop).result(self._seconds)
        except (ExchangeError, TimeoutError, CancelledError):
            raise TransportError("no answer") from None
        return _Response(answer.status, answer.headers, answer.body)


class Tokens:
    """Keeps one access token."""

    def __init__(self, settings: GcpPlatform, observe: ObserveCall) -> None:
        self._settings = settings
        self._observe = observe
        self._credentials: Any = None
        self._http = CloudHttp(
            trust=lambda: trust(settings),
            proxy=settings.proxy,
            seconds=_WHOLE,
            connect_seconds=5.0,
            answer_bytes=_LIMIT,
            connections=4,
        )
        self._flights: SingleFlight[str, str] = SingleFlight()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gcp-token")

    async def token(self) -> str:
        """Return a token that is still good for minutes; raises Unavailable."""
        credentials = self._credentials
        if credentials is not None and credentials.valid and credentials.token:
            return credentials.token
        return await self._flights.share("token", self._fetch)

    def forget(self, token: str) -> None:
        if self._credentials is not None and self._credentials.token == token:
            self._credentials = None

    async def aclose(self) -> None:
        await self._flights.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._http.aclose()

    async def _fetch(self) -> str:
        started = time.monotonic()
        outcome, failure = CallOutcome.FAILED, ""
        try:
            loop = asyncio.get_running_loop()
            transport = _Transport(self._http, loop, _WHOLE + _GRACE)
            token = await loop.run_in_executor(self._thread, self._refresh, transport)
        except _TokenError as error:
            outcome, failure = error.outcome, str(error)
        else:
            outcome = CallOutcome.OK
            return token
        finally:
            self._observe("oauth", outcome, time.monotonic() - started)
        raise platform_unavailable(
            f"no access token for Google Cloud: {failure}",
            remedy="give the controller a service account by workload identity or platforms.gcp.credentialsFile, and a "
            "way to the token endpoint",
            retry_after=15.0,
        )

    def _refresh(self, transport: _Transport) -> str:
        from google.auth import exceptions

        try:
            credentials = self._credentials or _find(self._settings, transport)
            credentials.refresh(transport)
        except exceptions.TransportError:
            raise _TokenError(CallOutcome.UNREACHABLE, "the token endpoint cannot be reached") from None
        except exceptions.DefaultCredentialsError:
            raise _TokenError(CallOutcome.REFUSED, "no usable credentials were found") from None
        except exceptions.RefreshError as error:
            outcome = CallOutcome.FAILED if getattr(error, "retryable", False) else CallOutcome.REFUSED
            raise _TokenError(outcome, "the authorisation server gave none") from None
        except (exceptions.GoogleAuthError, Denied, OSError, *_OF_ANSWERS):
            raise _TokenError(CallOutcome.FAILED, "the credentials cannot be used") from None
        token: object = credentials.token
        if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
            raise _TokenError(CallOutcome.FAILED, "the authorisation server's answer holds none")
        self._credentials = credentials
        return token


_OF_ANSWERS: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What google-auth raises for an answer that it does not expect."""


class _TokenError(Exception):
    """No token came; the message holds nothing of what was sent."""

    def __init__(self, outcome: CallOutcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def _find(settings: GcpPlatform, transport: _Transport) -> Any:  # noqa: ANN401 - google-auth has no types
    """Load a service account's key, a workload identity federation's configuration, or the default credentials."""
    import google.auth
    from google.auth import aws, identity_pool
    from google.oauth2 import service_account

    if settings.credentials is None:
        return cast("Any", google.auth).default(scopes=_SCOPES, request=transport)[0]
    with Path(settings.credentials).open("rb") as file:
        content = read_credentials(file.read(_LIMIT))
    if content["type"] == "service_account":
        load = cast("Any", service_account.Credentials).from_service_account_info
    else:
        is_aws = "environment_id" in credential_source(content)
        load = cast("Any", aws.Credentials if is_aws else identity_pool.Credentials).from_info
    return load(content, scopes=_SCOPES)
