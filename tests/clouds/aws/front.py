"""The HTTPS front of STS and EC2: verifies who asks, lets pass what that one may do, and hands it on to moto.

moto believes everybody, so the front verifies signatures. GetCallerIdentity is for everybody, all else for those who
were given it.
Refusals have the bodies that AWS sends. A service can be told to throttle, to be down or to be slow.
Source: AWS, "Signature Version 4", "Common errors" of STS and EC2; botocore computes signatures.
"""

from __future__ import annotations

import hmac
import re
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html import escape, unescape
from typing import Final, Literal, Protocol, cast
from urllib.error import HTTPError
from urllib.parse import parse_qs
from urllib.request import ProxyHandler, build_opener
from urllib.request import Request as HttpRequest

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Keys

from clouds.aws.metadata import Credentials
from clouds.serving import Reply, Request, as_json

Mode = Literal["up", "throttle", "down", "hang"]
_TOLERANCE: Final = timedelta(minutes=5)
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[A-Z0-9]+)/(?P<date>[0-9]{8})/(?P<region>[a-z0-9-]+)/(?P<service>[a-z0-9]+)"
    r"/aws4_request, ?SignedHeaders=(?P<headers>[a-z0-9;-]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_DATE: Final = "%Y%m%dT%H%M%SZ"
_HOSTS: Final = ("localhost", "127.0.0.1")
_JSON: Final = "application/json"
_XML: Final = {"Content-Type": "text/xml"}
_FIELD: Final = re.compile(r"<(Account|Arn|UserId|Code|Message)>([^<]*)</")
_STS_ERROR: Final = (
    '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">\n  <Error>\n    <Type>Sender</Type>\n'
    "    <Code>{code}</Code>\n    <Message>{message}</Message>\n  </Error>\n"
    "  <RequestId>{request}</RequestId>\n</ErrorResponse>\n"
)
_EC2_ERROR: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message>'
    "</Error></Errors><RequestID>{request}</RequestID></Response>"
)


class Refused(Exception):
    """What AWS answers instead of doing it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the authorization header claims."""

    key: str
    date: str
    region: str
    service: str
    names: tuple[str, ...]
    signature: str = field(repr=False)


@dataclass(slots=True, kw_only=True)
class Front:
    """Handles what comes in by HTTPS."""

    moto: str
    regions: frozenset[str]
    principals: dict[str, tuple[Credentials, frozenset[str]]] = field(
        default_factory=dict[str, tuple[Credentials, frozenset[str]]]
    )
    """By access key: the secret, and actions besides GetCallerIdentity."""
    modes: dict[str, tuple[Mode, float]] = field(default_factory=dict[str, tuple[Mode, float]])
    """By service, with seconds."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """Requests by ``service:action`` or ``service:error code``."""

    def answer(self, request: Request) -> Reply:
        """Answer one request."""
        service = "sts"
        try:
            scope = _scope_of(request)
            service = scope.service
            self._behave(service)
            action = self._admit(request, scope)
            self.calls[f"{service}:{action}"] += 1
            reply = self._forward(request)
        except Refused as refused:
            self.calls[f"{service}:{refused.code}"] += 1
            form = _EC2_ERROR if service == "ec2" else _STS_ERROR
            text = form.format(code=refused.code, message=escape(refused.message, quote=False), request=uuid.uuid4())
            reply = Reply(refused.status, text.encode(), _XML)
        return _preferred(request, reply)

    def _behave(self, service: str) -> None:
        """Do as the service was told to."""
        match self.modes.get(service, ("up", 0.0)):
            case ("hang", seconds):
                time.sleep(seconds)
            case ("down", _):
                raise Refused(503, "ServiceUnavailable", "The server has failed for a moment.")
            case ("throttle", _) if service == "ec2":
                raise Refused(503, "RequestLimitExceeded", "Request limit exceeded.")
            case ("throttle", _):
                raise Refused(400, "Throttling", "Rate exceeded")
            case _:
                return

    def _admit(self, request: Request, scope: Scope) -> str:
        """Verify the signature and the permission; return the action."""
        host = request.headers.get("host", "").partition(":")[0]
        if scope.region not in self.regions or not (
            host in _HOSTS or host.startswith(f"{scope.service}.{scope.region}.")
        ):
            raise Refused(403, "SignatureDoesNotMatch", "Credential should be scoped to a valid region.")
        keys, may = self.principals.get(scope.key, (None, frozenset[str]()))
        if keys is None or keys.token != request.headers.get("x-amz-security-token"):
            raise Refused(403, "InvalidClientTokenId", "The security token included in the request is invalid.")
        verify(request, scope, keys, now=datetime.now(UTC))
        actions = parse_qs(request.body.decode(errors="replace")).get("Action", [])
        if request.method != "POST" or len(actions) != 1:
            raise Refused(400, "MissingAction", "The request is missing an action or a required parameter.")
        if actions[0] not in may | {"GetCallerIdentity"}:
            code = "UnauthorizedOperation" if scope.service == "ec2" else "AccessDenied"
            raise Refused(403, code, "You are not authorized to perform this operation.")
        return actions[0]

    def _forward(self, request: Request) -> Reply:
        """Let moto answer, which finds service, region and account in the authorization header."""
        passed = ("authorization", "content-type", "x-amz-date", "x-amz-security-token")
        headers = {name: request.headers[name] for name in passed if name in request.headers}
        try:
            with build_opener(ProxyHandler({})).open(HttpRequest(self.moto, request.body, headers)) as answer:  # noqa: S310 - loopback
                status, body = int(answer.status), cast("bytes", answer.read())
        except HTTPError as error:
            status, body = error.code, error.read()
        return Reply(status, body, _XML)


def _preferred(request: Request, reply: Reply) -> Reply:
    """Give STS's answers as JSON to anyone who accepts that, as STS does; moto knows XML only."""
    if request.headers.get("accept") != _JSON or b"sts.amazonaws.com" not in reply.body:
        return reply
    found = {name: unescape(value) for name, value in _FIELD.findall(reply.body.decode())}
    identity = {name: found[name] for name in ("Account", "Arn", "UserId") if name in found}
    said: dict[str, object] = {"GetCallerIdentityResponse": {"GetCallerIdentityResult": identity}}
    if "Code" in found:
        said = {"Error": {"Code": found["Code"], "Message": found.get("Message", ""), "Type": "Sender"}}
    return as_json(said, reply.status)


def _scope_of(request: Request) -> Scope:
    """Read the authorization header."""
    header = request.headers.get("authorization")
    if header is None:
        raise Refused(403, "MissingAuthenticationToken", "Request is missing Authentication Token")
    match = _AUTHORIZATION.fullmatch(header)
    if match is None or match["service"] not in {"sts", "ec2"}:
        raise Refused(400, "IncompleteSignature", "The request signature does not conform to AWS standards.")
    return Scope(
        key=match["key"],
        date=match["date"],
        region=match["region"],
        service=match["service"],
        names=tuple(match["headers"].split(";")),
        signature=match["signature"],
    )


def verify(request: Request, scope: Scope, keys: Credentials, *, now: datetime) -> None:
    """Recompute the signature from the secret. What is not signed is not believed; the time is near now."""
    if keys.expires <= now:
        raise Refused(403, "ExpiredToken", "The security token included in the request is expired")
    must = {"host"} | {name for name in request.headers if name.startswith("x-amz-")}
    unsigned = must - set(scope.names)
    if unsigned:
        listed = ", ".join(sorted(unsigned))
        raise _mismatch(f"There were headers present in the request which were not signed: {listed}")
    if list(scope.names) != sorted(set(scope.names)) or not set(scope.names) <= set(request.headers):
        raise _mismatch("'SignedHeaders' in Authorization header is not sorted, or names a header that is not there.")
    text = request.headers.get("x-amz-date", "")
    try:
        date = datetime.strptime(text, _DATE).replace(tzinfo=UTC)
    except ValueError:
        raise Refused(400, "IncompleteSignature", "Date must be in ISO-8601 'basic format'.") from None
    if not text.startswith(scope.date):
        raise _mismatch("Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP")
    if date < now - _TOLERANCE:
        earliest = (now - _TOLERANCE).strftime(_DATE)
        raise _mismatch(f"Signature expired: {text} is now earlier than {earliest} ({now.strftime(_DATE)} - 5 min.)")
    if date > now + _TOLERANCE:
        latest = (now + _TOLERANCE).strftime(_DATE)
        raise _mismatch(
            f"Signature not yet current: {text} is still later than {latest} ({now.strftime(_DATE)} + 5 min.)"
        )
    if not hmac.compare_digest(_signature(request, scope, keys), scope.signature):
        raise _mismatch("The request signature we calculated does not match the signature you provided.")


class _Request(Protocol):
    """The part of botocore's ``AWSRequest`` that is used; botocore has no types."""

    context: dict[str, str]


class _Auth(Protocol):
    """The part of botocore's ``SigV4Auth`` that is used."""

    def canonical_request(self, request: _Request) -> str: ...
    def string_to_sign(self, request: _Request, canonical_request: str) -> str: ...
    def signature(self, string_to_sign: str, request: _Request) -> str: ...


def _signature(request: Request, scope: Scope, keys: Credentials) -> str:
    auth = cast("_Auth", SigV4Auth(Keys(keys.access_key_id, keys.secret), scope.service, scope.region))
    headers = {name: request.headers[name] for name in scope.names}
    url = f"https://{request.headers['host']}{request.target}"
    signed = cast("_Request", AWSRequest(method=request.method, url=url, data=request.body, headers=headers))
    signed.context["timestamp"] = request.headers["x-amz-date"]
    return auth.signature(auth.string_to_sign(signed, auth.canonical_request(signed)), signed)


def _mismatch(message: str) -> Refused:
    return Refused(403, "SignatureDoesNotMatch", message)
