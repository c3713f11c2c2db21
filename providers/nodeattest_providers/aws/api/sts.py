"""Asking STS who signed: the controller's own request, in which only what the signature covers is the node's.

STS's refusal is ``Denied``. What says nothing about the signature is ``Unavailable``, with a spread ``retry_after``.
Source: AWS, "GetCallerIdentity", "Common error types", "Troubleshoot signed requests for AWS APIs"; IAM, "IAM ARNs";
botocore, ``retries/standard.py`` (codes); kubernetes-sigs/aws-iam-authenticator, ``pkg/token/token.go`` (JSON).
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_parsing import objects, strict_json
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_providers.aws.config import AwsPlatform
from nodeattest_providers.aws.protocol import PARTITION_NAME, SignedHeaders, StsRequest
from nodeattest_providers.cloud_http import CloudHttp, CloudResponse, ExchangeError, ResponseLimits
from nodeattest_providers.errors import Denied, Reason, platform_unavailable
from nodeattest_providers.platform import CallOutcome, Platform

THROTTLING_CODES: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottledException",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_SHORT: Final = (2.0, 6.0)
_THROTTLED: Final = (5.0, 20.0)
"""Seconds, from and to."""


def retry_after(outcome: CallOutcome, random: Callable[[], float]) -> float:
    """Return when to ask again; ``random`` gives 0 to 1."""
    low, high = _THROTTLED if outcome is CallOutcome.THROTTLED else _SHORT
    return low + (high - low) * random()


_ROLE_SESSION: Final = re.compile(
    rf"arn:(?P<partition>{PARTITION_NAME}):sts::(?P<account>[0-9]{{12}}):"
    r"assumed-role/(?P<role>[A-Za-z0-9_+=,.@-]{1,64})/(?P<session>[A-Za-z0-9_+=,.@-]{2,64})"
)
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_USER_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_ARN: Final = re.compile(r"[\x20-\x7e]{20,2048}")
_CODE: Final = re.compile(r"[A-Za-z.]{1,64}")


class NotSignedOverError(Exception):
    """STS says that the signature is not over this request: it may be over another binding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerIdentity:
    """STS's answer."""

    account: str
    arn: str
    user_id: str
    """For a role session: the role's unique ID, a colon, the session's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSession:
    """What the ARN of a role session says."""

    partition: str
    account: str
    role: str
    session: str
    """For a session that EC2 made, the instance's ID."""


def parse_identity(body: bytes) -> CallerIdentity | None:
    """Read the answer to a request that STS accepted."""
    result = objects.mapping(_json(body), "GetCallerIdentityResponse", "GetCallerIdentityResult")
    account, arn, user_id = (objects.text(result, name) for name in ("Account", "Arn", "UserId"))
    if not (_ACCOUNT.fullmatch(account) and _ARN.fullmatch(arn) and _USER_ID.fullmatch(user_id)):
        return None
    return CallerIdentity(account=account, arn=arn, user_id=user_id)


def parse_error_code(body: bytes) -> tuple[str, str] | None:
    """Read code and message of a refusal."""
    error = objects.mapping(_json(body), "Error")
    code = objects.text(error, "Code")
    return (code, objects.text(error, "Message")) if _CODE.fullmatch(code) else None


def parse_role_session(arn: str) -> RoleSession | None:
    """Take the ARN of a role session apart."""
    match = _ROLE_SESSION.fullmatch(arn)
    if match is None:
        return None
    return RoleSession(
        partition=match["partition"], account=match["account"], role=match["role"], session=match["session"]
    )


def _json(body: bytes) -> JsonObject:
    try:
        return strict_json.parse_object(body, max_size=None, floats=True)
    except ParseError:
        return {}


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
        raise platform_unavailable(
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
