"""Access tokens for the Compute API, from google-auth.

Promises: a token is fetched when it is needed and kept until shortly before it ends; google-auth, which blocks, runs in
a thread; its requests go through a transport of ours, which has time and size limits, follows no redirect and reads no
proxy from the environment. No message holds a token, a key or what the authorisation server said.
Source: google-auth's ``google.auth.transport.Request``; Google, "Application Default Credentials".
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.gcp.config import CredentialsKind, GcpPlatform, credentials_kind
from nodeattest_providers.platform import CallOutcome, ObserveCall
from nodeattest_providers.single_flight import SingleFlight

_SERVICE: Final = "oauth"
_SCOPES: Final = ("https://www.googleapis.com/auth/compute.readonly",)
_TIMEOUT: Final = 5.0
"""Seconds for each step of a request; google-auth tries up to three times."""
_WHOLE: Final = 10.0
"""Seconds for a whole request: an answer that comes byte by byte would keep a thread for days."""
_LIMIT: Final = 64 * 1024
"""Bytes of an answer; tokens have some 2 KiB."""


def trust(settings: GcpPlatform) -> ssl.SSLContext:
    """Load the authorities."""
    return ssl.create_default_context(cadata=settings.authorities)


class _Credentials(Protocol):
    """What is used of google-auth's credentials, which have no types."""

    token: str | None
    valid: bool

    def refresh(self, request: object) -> None:
        """Fetch a token."""
        ...


@dataclass(frozen=True, slots=True)
class _Response:
    """What google-auth expects of an answer."""

    status: int
    headers: Message
    """Its ``get`` ignores case, as google-auth expects."""
    data: bytes = field(repr=False)


class _NoRedirect(HTTPRedirectHandler):
    """Follows none: the answer with the redirect is the answer."""

    def redirect_request(self, req: object, fp: object, code: int, msg: str, headers: object, newurl: str) -> None:  # noqa: PLR0917 - urllib has it so
        """Follow none."""


class _Connection(http.client.HTTPSConnection):
    """Is cut off some seconds after it began, whatever still comes in."""

    def __init__(self, host: str, *, whole: float, **arguments: Any) -> None:  # noqa: ANN401 - urllib's own
        super().__init__(host, **arguments)
        self._whole = whole
        self._begun: socket.socket | None = None

    def connect(self) -> None:
        """Connect, and begin to count."""
        clock = threading.Timer(self._whole, self._end)
        clock.daemon = True
        clock.start()
        super().connect()
        self._begun = self.sock  # urllib lets go of it while the answer is read

    def _end(self) -> None:
        begun = self._begun or self.sock
        with suppress(OSError):  # over long ago
            if begun is not None:
                begun.shutdown(socket.SHUT_RDWR)


class _Https(HTTPSHandler):
    def __init__(self, context: ssl.SSLContext, whole: float) -> None:
        super().__init__(context=context)
        self._own, self._whole = context, whole

    def https_open(self, req: Request) -> http.client.HTTPResponse:
        """Send a request; urllib calls this."""
        return self.do_open(partial(_Connection, whole=self._whole), req, context=self._own)


class _Transport:
    """Sends google-auth's requests."""

    def __init__(self, settings: GcpPlatform, whole: float) -> None:
        proxies = {"https": settings.proxy} if settings.proxy else {}
        https = _Https(trust(settings), whole)
        self._opener: OpenerDirector = build_opener(ProxyHandler(proxies), https, _NoRedirect())

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: object,
    ) -> _Response:
        """Send one request, whatever the status; raises google-auth's TransportError where no answer came."""
        from google.auth.exceptions import TransportError

        request = Request(url, data=body, headers=dict(headers or {}), method=method)  # noqa: S310 - google-auth's own URLs
        try:
            with self._opener.open(request, timeout=min(timeout or _TIMEOUT, _TIMEOUT)) as answer:
                return _Response(answer.status, answer.headers, _bounded(answer))
        except HTTPError as error:
            with error:
                return _Response(error.code, error.headers, _bounded(error))
        except (OSError, http.client.HTTPException, ValueError):
            raise TransportError("no answer") from None


def _bounded(answer: object) -> bytes:
    data = cast("http.client.HTTPResponse", answer).read(_LIMIT + 1)
    if len(data) > _LIMIT:
        raise ValueError("too large an answer")
    return data


class Tokens:
    """Keeps one access token."""

    def __init__(self, settings: GcpPlatform, observe: ObserveCall, *, time_limit: float = _WHOLE) -> None:
        """``time_limit``: seconds for one request of google-auth's."""
        self._time_limit = time_limit
        self._settings = settings
        self._observe = observe
        self._credentials: _Credentials | None = None
        self._transport: _Transport | None = None
        self._flights: SingleFlight[str, str] = SingleFlight()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gcp-token")
        """Apart from the loop's own threads, which others may keep busy."""

    async def token(self) -> str:
        """Return a token that is still good for minutes; raises Unavailable."""
        credentials = self._credentials
        if credentials is not None and credentials.valid and credentials.token:
            return credentials.token
        return await self._flights.share("token", self._fetch)

    def forget(self, token: str) -> None:
        """Drop a token that the API refused."""
        if self._credentials is not None and self._credentials.token == token:
            self._credentials = None

    async def aclose(self) -> None:
        """End what is under way."""
        await self._flights.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _fetch(self) -> str:
        started = time.monotonic()
        outcome, failure = CallOutcome.OK, ""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._refresh)
        except _TokenError as error:
            outcome, failure = error.outcome, str(error)
        finally:
            self._observe(_SERVICE, outcome, time.monotonic() - started)
        raise Unavailable(
            Reason.PLATFORM_UNAVAILABLE,
            f"no access token for Google Cloud: {failure}",
            remedy="give the controller a service account by workload identity or platforms.gcp.credentialsFile, and a "
            "way to the token endpoint",
            retry_after=15.0,
        )

    def _refresh(self) -> str:
        """Fetch a token, in a thread."""
        from google.auth import exceptions

        try:
            self._transport = self._transport or _Transport(self._settings, self._time_limit)
            credentials = self._credentials or _find(self._settings, self._transport)
            credentials.refresh(self._transport)
        except exceptions.TransportError:
            raise _TokenError(CallOutcome.UNREACHABLE, "the token endpoint cannot be reached") from None
        except exceptions.DefaultCredentialsError:
            raise _TokenError(CallOutcome.REFUSED, "no usable credentials were found") from None
        except exceptions.RefreshError as error:
            outcome = CallOutcome.FAILED if getattr(error, "retryable", False) else CallOutcome.REFUSED
            raise _TokenError(outcome, "the authorisation server gave none") from None
        except (exceptions.GoogleAuthError, Denied, OSError, ValueError, TypeError, KeyError):
            raise _TokenError(CallOutcome.FAILED, "the credentials cannot be used") from None
        token = credentials.token
        if not token or not token.isascii() or not token.isprintable():
            raise _TokenError(CallOutcome.FAILED, "the authorisation server's answer holds none")
        self._credentials = credentials
        return token


class _TokenError(Exception):
    """No token came; the message holds nothing of what was sent."""

    def __init__(self, outcome: CallOutcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def _find(settings: GcpPlatform, transport: _Transport) -> _Credentials:
    """Load the configured credentials, or the default ones."""
    if settings.credentials is not None:
        return _of_file(settings.credentials)
    import google.auth

    found, _ = google.auth.default(scopes=_SCOPES, request=transport)  # pyright: ignore[reportArgumentType, reportUnknownMemberType, reportUnknownVariableType] - a transport by its shape
    return cast("_Credentials", found)


def _of_file(path: str) -> _Credentials:
    """Load a service account's key or a workload identity federation's configuration."""
    from google.auth import aws, identity_pool
    from google.oauth2 import service_account

    with Path(path).open("rb") as file:
        kind, content = credentials_kind(file.read(_LIMIT))
    match kind:
        case CredentialsKind.KEY:
            load = service_account.Credentials.from_service_account_info  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - no types
        case CredentialsKind.AWS:
            load = aws.Credentials.from_info  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - no types
        case CredentialsKind.FEDERATION:
            load = identity_pool.Credentials.from_info  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - no types
    return cast("_Credentials", load(content, scopes=_SCOPES))
