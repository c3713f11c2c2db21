"""The HTTPS front of STS and EC2: verifies who asks, lets pass what that one may do, and hands it on to moto.

moto believes everybody, so the front verifies signatures. GetCallerIdentity is for everybody, all else for those who
were given it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import unescape
from typing import Final, cast
from urllib.error import HTTPError
from urllib.parse import parse_qs
from urllib.request import ProxyHandler, build_opener
from urllib.request import Request as HttpRequest

from aws_signing import RoleSession, signed_right

from clouds.aws.metadata import Credentials
from clouds.serving import Reply, Request, as_json

_KEY: Final = re.compile(r"AWS4-HMAC-SHA256 Credential=(\w+)/\d{8}/[a-z0-9-]+/(sts|ec2)/")
_XML: Final = {"Content-Type": "text/xml"}
_FIELD: Final = re.compile(r"<(Account|Arn|UserId|Code|Message)>([^<]*)</")


@dataclass(slots=True, kw_only=True)
class Front:
    """Handles what comes in by HTTPS."""

    moto: str
    principals: dict[str, tuple[Credentials, frozenset[str]]] = field(
        default_factory=dict[str, tuple[Credentials, frozenset[str]]]
    )
    """By access key: the secret, and actions besides GetCallerIdentity."""

    def answer(self, request: Request) -> Reply:
        """Answer one request."""
        match = _KEY.match(request.headers.get("authorization", ""))
        keys, may = self.principals.get(match[1] if match else "", (None, frozenset[str]()))
        if keys is None or keys.expires <= datetime.now(UTC):
            return _refused("InvalidClientTokenId")
        session = RoleSession(access_key=keys.access_key_id, secret_key=keys.secret, token=keys.token)
        if not signed_right(request.headers.get("host", ""), request.headers, request.body, session):
            return _refused("SignatureDoesNotMatch")
        [action] = parse_qs(request.body.decode()).get("Action", [""])
        if action not in may | {"GetCallerIdentity"}:
            return _refused("UnauthorizedOperation")
        return self._forward(request)

    def _forward(self, request: Request) -> Reply:
        """Let moto answer, which finds service, region and account in the authorization header.

        STS answers in JSON to anyone who accepts that, and moto in XML only.
        """
        passed = ("authorization", "content-type", "x-amz-date", "x-amz-security-token")
        headers = {name: request.headers[name] for name in passed if name in request.headers}
        try:
            with build_opener(ProxyHandler({})).open(HttpRequest(self.moto, request.body, headers)) as answer:  # noqa: S310 - loopback
                status, body = int(answer.status), cast("bytes", answer.read())
        except HTTPError as error:
            status, body = error.code, error.read()
        if request.headers.get("accept") != "application/json" or b"sts.amazonaws.com" not in body:
            return Reply(status, body, _XML)
        identity = {name: unescape(value) for name, value in _FIELD.findall(body.decode())}
        return as_json({"GetCallerIdentityResponse": {"GetCallerIdentityResult": identity}}, status)


def _refused(code: str) -> Reply:
    return Reply(403, f"<Response><Errors><Error><Code>{code}</Code></Error></Errors></Response>".encode(), _XML)
