"""Asking STS who signed: the controller's own request, in which only what the signature covers is the node's.

Promises: the host follows from the region or is in the controller's configuration, method, path, body and binding
are ours; nothing of the node's is followed. No redirect, no proxy but a configured one, no environment; bounded time,
bytes and connections. STS's refusal is ``Denied``; whatever says nothing about the signature is ``Unavailable``.
Source: AWS, "GetCallerIdentity", "Common error types", "Troubleshoot signed requests for AWS APIs".
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Final

from nodeattest_providers.aws.api.backoff import THROTTLING_CODES, retry_after
from nodeattest_providers.aws.api.caller_identity import (
    CallerIdentity,
    NotSignedOverError,
    parse_error_code,
    parse_identity,
)
from nodeattest_providers.aws.config import AwsPlatform
from nodeattest_providers.aws.protocol import SignedHeaders, StsRequest
from nodeattest_providers.cloud_http import CloudHttp, CloudResponse, ExchangeError, ResponseLimits
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.platform import CallOutcome, Platform

SERVICE: Final = "sts"
_LIMITS: Final = ResponseLimits(seconds=8.0, connect_seconds=4.0, answer_bytes=16 * 1024, connections=32)
"""The time is below the controller's limit for a verification; STS's answers have 500 bytes."""
_OK: Final = 200
_CLIENT_ERROR, _TOO_MANY, _SERVER_ERROR = 400, 429, 500
_MISMATCH: Final = "SignatureDoesNotMatch"
_EXPIRED: Final = ("Signature expired", "Signature not yet current")
"""How STS's message begins then; the code is that of a signature that does not match."""
_OUR_SIDE: Final = "an operator checks the controller's network and platforms.aws; the request waits meanwhile"


class StsClient:
    """Sends requests that others signed."""

    def __init__(self, configuration: AwsPlatform, platform: Platform, random: Callable[[], float]) -> None:
        bundle = configuration.ca_bundle
        self._endpoint = configuration.sts
        self._http = CloudHttp(
            trust=lambda: ssl.create_default_context(cafile=str(bundle) if bundle else None),
            proxy=configuration.proxy,
            limits=_LIMITS,
        )
        self._platform = platform
        self._random = random

    async def caller(self, request: StsRequest, signed: SignedHeaders) -> CallerIdentity:
        """Ask who signed a request; raises NotSignedOverError, Denied or Unavailable."""
        started = time.monotonic()
        body = b""
        try:
            answer = await self._send(request, signed)
            body = answer.body
            outcome, what = _outcome(answer.status, body), f"gave an answer of another form, status {answer.status}"
        except ExchangeError as error:
            outcome, what = error.outcome, str(error)
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
        await self._http.aclose()

    async def _send(self, request: StsRequest, signed: SignedHeaders) -> CloudResponse:
        headers = {
            **request.headers,
            "authorization": signed.authorization,
            "x-amz-date": signed.date,
            "x-amz-security-token": signed.security_token,
        }
        url = f"{self._endpoint}{request.path}" if self._endpoint else request.url
        return await self._http.exchange(request.method, url, headers=headers, body=request.body)


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
        remedy="check the instance's role and its credentials; if STS is not active in the region, activate it",
    )
