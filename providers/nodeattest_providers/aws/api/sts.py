"""Asking STS who signed: the controller's own request, in which only what the signature covers is the node's.

STS's refusal is ``Denied``. What says nothing about the signature is ``Unavailable``, with a spread ``retry_after``.
Source: AWS, "GetCallerIdentity", "Common error types", "Troubleshoot signed requests for AWS APIs"; IAM, "IAM ARNs";
botocore, ``retries/standard.py`` (codes); kubernetes-sigs/aws-iam-authenticator, ``pkg/token/token.go`` (JSON).
"""

from __future__ import annotations

import random
import re
import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from nodeattest_parsing import objects, strict_json
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_providers.aws.config import AwsPlatform
from nodeattest_providers.aws.protocol import PARTITION_NAME, SignedHeaders, StsRequest
from nodeattest_providers.cloud_http import CloudHttp, ExchangeError
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
_RETRY: Final = (2.0, 6.0)
_THROTTLED: Final = (5.0, 20.0)
"""Seconds, from and to: requests that failed together do not come back together."""


def retry_after(outcome: CallOutcome) -> float:
    return random.uniform(*(_THROTTLED if outcome is CallOutcome.THROTTLED else _RETRY))  # noqa: S311 - no secret


_ROLE_SESSION: Final = re.compile(
    rf"arn:(?P<partition>{PARTITION_NAME}):sts::(?P<account>[0-9]{{12}}):"
    r"assumed-role/(?P<role>[A-Za-z0-9_+=,.@-]{1,64})/(?P<session>[A-Za-z0-9_+=,.@-]{2,64})"
)
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_USER_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_ARN: Final = re.compile(r"[\x20-\x7e]{20,2048}")
_CODE: Final = re.compile(r"[A-Za-z.]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerIdentity:
    """STS's answer."""

    account: str
    arn: str
    user_id: str
    """For a role session: the role's unique ID, a colon, the session's name."""


@dataclass(frozen=True, slots=True)
class RoleSession:
    """What the ARN of a role session says."""

    partition: str
    account: str
    role: str
    session: str
    """For a session that EC2 made, the instance's ID."""


def parse_identity(body: bytes) -> CallerIdentity | None:
    result = objects.mapping(_json(body), "GetCallerIdentityResponse", "GetCallerIdentityResult")
    account, arn, user_id = (objects.text(result, name) for name in ("Account", "Arn", "UserId"))
    if not (_ACCOUNT.fullmatch(account) and _ARN.fullmatch(arn) and _USER_ID.fullmatch(user_id)):
        return None
    return CallerIdentity(account=account, arn=arn, user_id=user_id)


def parse_error_code(body: bytes) -> tuple[str, str]:
    """Read code and message of a refusal; empty where it is none."""
    error = objects.mapping(_json(body), "Error")
    code = objects.text(error, "Code")
    return (code, objects.text(error, "Message")) if _CODE.fullmatch(code) else ("", "")


def parse_role_session(arn: str) -> RoleSession | None:
    match = _ROLE_SESSION.fullmatch(arn)
    return None if match is None else RoleSession(*match.groups())


def _json(body: bytes) -> JsonObject:
    try:
        return strict_json.parse_object(body, max_size=None, floats=True)
    except ParseError:
        return {}


_EXPIRED: Final = ("Signature expired", "Signature not yet current")
"""How STS's message begins then; the code is that of a signature that does not match."""


class StsClient:
    """Sends requests that others signed."""

    def __init__(self, configuration: AwsPlatform, platform: Platform) -> None:
        bundle = configuration.ca_bundle
        self._endpoint = configuration.sts
        self._http = CloudHttp(
            trust=lambda: ssl.create_default_context(cafile=str(bundle) if bundle else None),
            proxy=configuration.proxy,
            seconds=8.0,  # below the controller's limit for a verification
            connect_seconds=4.0,
            answer_bytes=16 * 1024,  # an answer has 500
            connections=32,
        )
        self._platform = platform

    async def caller(self, request: StsRequest, signed: SignedHeaders) -> CallerIdentity | None:
        """Return who signed a request; None where it was another request. Raises Denied or Unavailable."""
        headers = {
            **request.headers,
            "authorization": signed.authorization,
            "x-amz-date": signed.date,
            "x-amz-security-token": signed.security_token,
        }
        started, identity, code, message = time.monotonic(), None, "", ""
        try:
            answer = await self._http.exchange(
                "POST", f"{self._endpoint or request.origin}/", headers=headers, body=request.body
            )
            identity = parse_identity(answer.body) if answer.status == HTTPStatus.OK else None
            code, message = parse_error_code(answer.body)
            outcome = CallOutcome.OK if identity else _outcome(answer.status, code)
            problem = f"gave an answer of another form, status {answer.status}"
        except ExchangeError as error:
            outcome, problem = error.outcome, str(error)
        self._platform.observe("sts", outcome, time.monotonic() - started)
        if identity is not None:
            return identity
        if outcome is CallOutcome.REFUSED:
            return _refused(code, message)
        raise platform_unavailable(
            f"AWS STS {'throttles' if outcome is CallOutcome.THROTTLED else problem}",
            remedy="an operator checks the controller's network and platforms.aws; the request waits meanwhile",
            retry_after=retry_after(outcome),
        )

    async def aclose(self) -> None:
        await self._http.aclose()


def _outcome(status: int, code: str) -> CallOutcome:
    if status == HTTPStatus.TOO_MANY_REQUESTS or code in THROTTLING_CODES:
        return CallOutcome.THROTTLED
    is_refusal = code and HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    return CallOutcome.REFUSED if is_refusal else CallOutcome.FAILED


def _refused(code: str, message: str) -> None:
    """Raise Denied, unless STS says that the signature is over another request: it may be over another binding."""
    if message.startswith(_EXPIRED):
        raise Denied(
            Reason.PLATFORM_PROOF_EXPIRED,
            expected="a signature that STS takes for fresh",
            got=code,
            remedy="set the node's clock, and file a new request if this one had to wait",
        )
    if code != "SignatureDoesNotMatch":
        raise Denied(
            Reason.PLATFORM_PROOF_REFUSED,
            expected="valid credentials of the instance's role",
            got=f"STS: {code}",
            remedy="check the instance's role and its credentials; if STS is not active in the region, activate it",
        )
