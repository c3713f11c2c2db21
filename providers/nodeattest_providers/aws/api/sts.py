"""Asking STS who signed: the controller's own request, in which only what the signature covers is the node's.

Promises: the host follows from the region or stands in the controller's configuration, method, path, body and binding
are ours; nothing of the node's is followed. No redirect, no proxy but a configured one, no environment; bounded time,
bytes and connections. STS's refusal is ``Denied``; whatever says nothing about the signature is ``Unavailable``.
Leaves to others: the header set's spelling (``authorization_header``), what the identity may do (``verifier``).
Source: AWS, "GetCallerIdentity", "Common error types", "Troubleshoot signed requests for AWS APIs".
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp

from nodeattest_providers.aws.api.backoff import THROTTLING_CODES, retry_after
from nodeattest_providers.aws.api.caller_identity import (
    CallerIdentity,
    NotSignedOverError,
    parse_error_code,
    parse_identity,
)
from nodeattest_providers.aws.config import AwsPlatform
from nodeattest_providers.aws.protocol import SignedHeaders, StsRequest
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.platform import CallOutcome, Platform

__all__ = ["StsClient"]

SERVICE: Final = "sts"
_LIMIT: Final = 16 * 1024
"""Bytes of an answer; STS's have 500."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=8.0, connect=4.0)
"""Seconds; below the controller's limit for a verification."""
_CONNECTIONS: Final = 32
_GOODBYE: Final = 0.25
"""Seconds (aiohttp, "Graceful shutdown")."""
_OK: Final = 200
_CLIENT_ERROR, _TOO_MANY, _SERVER_ERROR = 400, 429, 500
_MISMATCH: Final = "SignatureDoesNotMatch"
_EXPIRED: Final = ("Signature expired", "Signature not yet current")
"""How STS's message begins then; the code is that of a signature that does not match."""
_OUR_SIDE: Final = "an operator looks at the controller's network and platforms.aws; the request waits meanwhile"


class StsClient:
    """Sends requests that others signed."""

    def __init__(self, configuration: AwsPlatform, platform: Platform, random: Callable[[], float]) -> None:
        self._endpoint = configuration.sts
        self._proxy = configuration.proxy
        self._ca_bundle = configuration.ca_bundle
        self._platform = platform
        self._random = random
        self._session: aiohttp.ClientSession | None = None
        self._broken_off = False

    async def caller(self, request: StsRequest, signed: SignedHeaders) -> CallerIdentity:
        """Ask who signed a request; raises NotSignedOverError, Denied or Unavailable."""
        started = time.monotonic()
        status, body = 0, b""
        try:
            status, body = await self._send(request, signed)
            outcome, what = _outcome(status, body), f"gave an answer of another form, status {status}"
        except (TimeoutError, aiohttp.ServerTimeoutError):
            outcome, what = CallOutcome.TIMED_OUT, "did not answer in time"
        except aiohttp.ClientConnectorError as error:
            outcome, what = CallOutcome.UNREACHABLE, f"cannot be reached: {type(error).__name__}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            outcome, what = CallOutcome.FAILED, f"gave no answer: {type(error).__name__}"
        self._broken_off = self._broken_off or outcome not in {CallOutcome.OK, CallOutcome.REFUSED}
        self._platform.observe(SERVICE, outcome, time.monotonic() - started)
        identity = parse_identity(body) if outcome is CallOutcome.OK else None
        if identity is not None:
            return identity
        if outcome is CallOutcome.REFUSED:
            raise _refused(*(parse_error_code(body) or ("", "")))
        raise Unavailable(
            Reason.PLATFORM_UNAVAILABLE,
            f"AWS STS {'throttles' if outcome is CallOutcome.THROTTLED else what}",
            remedy=_OUR_SIDE,
            retry_after=retry_after(outcome, self._random),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._broken_off:  # those connections close by themselves, and aiohttp waits for the others only
            await asyncio.sleep(_GOODBYE)

    async def _send(self, request: StsRequest, signed: SignedHeaders) -> tuple[int, bytes]:
        headers = {
            **request.headers,
            "accept": "application/json",
            "accept-encoding": "identity",
            "authorization": signed.authorization,
            "x-amz-date": signed.date,
            "x-amz-security-token": signed.security_token,
        }
        url = f"{self._endpoint}{request.path}" if self._endpoint else request.url
        async with self._open().request(
            request.method, url, data=request.body, headers=headers, allow_redirects=False, proxy=self._proxy
        ) as response:
            return response.status, await _bounded(response.content)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            context = ssl.create_default_context(cafile=_cafile(self._ca_bundle))
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=context),
                timeout=_TIMEOUT,
                trust_env=False,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _cafile(path: Path | None) -> str | None:
    return str(path) if path else None


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """Read an answer; one that is too long is none."""
    body = b""
    while len(body) <= _LIMIT and (chunk := await content.read(_LIMIT + 1 - len(body))):
        body += chunk
    return body if len(body) <= _LIMIT else b""


def _outcome(status: int, body: bytes) -> CallOutcome:
    code = (parse_error_code(body) or ("", ""))[0]
    if status == _TOO_MANY or code in THROTTLING_CODES:
        return CallOutcome.THROTTLED
    if status == _OK:
        return CallOutcome.OK if parse_identity(body) else CallOutcome.FAILED
    is_refusal = _CLIENT_ERROR <= status < _SERVER_ERROR and code
    return CallOutcome.REFUSED if is_refusal else CallOutcome.FAILED


def _refused(code: str, message: str) -> Denied | NotSignedOverError:
    if message.startswith(_EXPIRED):
        return Denied(
            Reason.PLATFORM_PROOF_EXPIRED,
            expected="a signature that STS takes for fresh",
            got=code,
            remedy="set the node's clock; file anew if the request had to wait",
        )
    if code == _MISMATCH:
        return NotSignedOverError()
    return Denied(
        Reason.PLATFORM_PROOF_REFUSED,
        expected="credentials of the instance's role that are in force",
        got=f"STS: {code}",
        remedy="look at the instance's role and its credentials; if STS is not active in the region, activate it",
    )
