"""Verifying Signature Version 4 as AWS does: recomputed from the secret that the access key stands for.

Promises: what is not signed is not believed; the time is within five minutes of now; a session token is the one that
was handed out with the key. Refusals carry the code, status and words of AWS. Pure: the clock and the secrets come in.
Source: AWS, "Signature Version 4", "Troubleshoot signed requests"; botocore ``auth.SigV4Auth`` computes.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, cast

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

TOLERANCE: Final = timedelta(minutes=5)
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[A-Z0-9]+)/(?P<date>[0-9]{8})/(?P<region>[a-z0-9-]+)/(?P<service>[a-z0-9]+)"
    r"/aws4_request, ?SignedHeaders=(?P<headers>[a-z0-9;-]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_DATE: Final = "%Y%m%dT%H%M%SZ"
_SERVICES: Final = frozenset({"sts", "ec2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Whose an access key is."""

    account: str
    access_key_id: str
    secret: str = field(repr=False)
    token: str | None = field(repr=False)
    """The session token; None for a user's own key."""
    expires: datetime | None
    may: frozenset[str]
    """Actions besides GetCallerIdentity, which needs no permission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A request as it came."""

    method: str
    target: str
    """Path and query."""
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes = field(repr=False)


class Refused(Exception):
    """What AWS answers instead of doing it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the authorization header claims."""

    key: str
    date: str
    region: str
    service: str
    names: tuple[str, ...]
    signature: str = field(repr=False)


def scope_of(request: Received) -> Scope:
    """Read the authorization header; raises Refused."""
    header = request.headers.get("authorization")
    if header is None:
        raise Refused(403, "MissingAuthenticationToken", "Request is missing Authentication Token")
    match = _AUTHORIZATION.fullmatch(header)
    if match is None or match["service"] not in _SERVICES:
        raise Refused(400, "IncompleteSignature", "The request signature does not conform to AWS standards.")
    return Scope(
        key=match["key"],
        date=match["date"],
        region=match["region"],
        service=match["service"],
        names=tuple(match["headers"].split(";")),
        signature=match["signature"],
    )


def verify(request: Received, scope: Scope, principals: Mapping[str, Principal], *, now: datetime) -> Principal:
    """Tell who signed a request; raises Refused."""
    principal = principals.get(scope.key)
    token = request.headers.get("x-amz-security-token")
    if principal is None or principal.token != token:
        raise Refused(403, "InvalidClientTokenId", "The security token included in the request is invalid.")
    if principal.expires is not None and principal.expires <= now:
        raise Refused(403, "ExpiredToken", "The security token included in the request is expired")
    _check_names(request, scope)
    _check_time(request.headers.get("x-amz-date", ""), scope, now)
    if not hmac.compare_digest(_signature(request, scope, principal), scope.signature):
        raise _mismatch(
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
            "Access Key and signing method. Consult the service documentation for details."
        )
    return principal


def _check_names(request: Received, scope: Scope) -> None:
    """Host and every x-amz- header that is there must be signed."""
    if list(scope.names) != sorted(set(scope.names)):
        raise _mismatch("'SignedHeaders' in Authorization header is not sorted.")
    must = {"host"} | {name for name in request.headers if name.startswith("x-amz-")}
    unsigned = must - set(scope.names)
    if unsigned:
        raise _mismatch(
            f"There were headers present in the request which were not signed: {', '.join(sorted(unsigned))}"
        )
    if not set(scope.names) <= set(request.headers):
        raise _mismatch("A header of 'SignedHeaders' is not in the request.")


def _check_time(text: str, scope: Scope, now: datetime) -> None:
    try:
        date = datetime.strptime(text, _DATE).replace(tzinfo=UTC)
    except ValueError:
        raise Refused(400, "IncompleteSignature", "Date must be in ISO-8601 'basic format'.") from None
    if not text.startswith(scope.date):
        raise _mismatch("Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP")
    if date < now - TOLERANCE:
        earliest = (now - TOLERANCE).strftime(_DATE)
        raise _mismatch(f"Signature expired: {text} is now earlier than {earliest} ({now.strftime(_DATE)} - 5 min.)")
    if date > now + TOLERANCE:
        latest = (now + TOLERANCE).strftime(_DATE)
        raise _mismatch(
            f"Signature not yet current: {text} is still later than {latest} ({now.strftime(_DATE)} + 5 min.)"
        )


class _Request(Protocol):
    """The part of botocore's ``AWSRequest`` that is used; botocore has no types."""

    context: dict[str, str]


class _Auth(Protocol):
    """The part of botocore's ``SigV4Auth`` that is used."""

    def canonical_request(self, request: _Request) -> str: ...
    def string_to_sign(self, request: _Request, canonical_request: str) -> str: ...
    def signature(self, string_to_sign: str, request: _Request) -> str: ...


def _signature(request: Received, scope: Scope, principal: Principal) -> str:
    keys = Credentials(principal.access_key_id, principal.secret)
    auth = cast("_Auth", SigV4Auth(keys, scope.service, scope.region))
    headers = {name: request.headers[name] for name in scope.names}
    url = f"https://{request.headers['host']}{request.target}"
    signed = cast("_Request", AWSRequest(method=request.method, url=url, data=request.body, headers=headers))
    signed.context["timestamp"] = request.headers["x-amz-date"]
    return auth.signature(auth.string_to_sign(signed, auth.canonical_request(signed)), signed)


def _mismatch(message: str) -> Refused:
    return Refused(403, "SignatureDoesNotMatch", message)
