"""SigV4 by botocore at a time of one's choice: what the node does, and what AWS does to check it. Typed here."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from botocore import auth, awsrequest, credentials

from nodeattest_providers.aws.protocol import SignedHeaders, StsRequest

_auth, _awsrequest, _credentials = cast("Any", auth), cast("Any", awsrequest), cast("Any", credentials)
TIMESTAMP = "%Y%m%dT%H%M%SZ"
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>\w+)/\d{8}/(?P<region>[a-z0-9-]+)/(?P<service>\w+)/aws4_request, "
    r"SignedHeaders=(?P<headers>[a-z0-9;-]+), Signature=(?P<signature>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class RoleSession:
    """Temporary credentials of a role."""

    access_key: str = "ASIAEXAMPLEEXAMPLE00"
    secret_key: str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    token: str = "FwoGZXIvYXdzEXAMPLE//////////wEaDEXAMPLE="
    expires: datetime = datetime(2099, 1, 1, tzinfo=UTC)

    @property
    def environment(self) -> dict[str, str]:
        """The variables in which AWS's libraries look for them."""
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        return dict(zip(names, (self.access_key, self.secret_key, self.token), strict=True))


def sign(request: StsRequest, session: RoleSession, at: datetime) -> SignedHeaders:
    """Sign as of a time."""
    headers = dict(request.headers)
    made = _awsrequest.AWSRequest(method="POST", url=f"{request.origin}/", data=request.body, headers=headers)
    _inject(made, session, at, "sts", request.region)
    return SignedHeaders(
        authorization=made.headers["Authorization"],
        date=made.headers["X-Amz-Date"],
        security_token=made.headers["X-Amz-Security-Token"],
    )


def _inject(made: Any, session: RoleSession, at: datetime, service: str, region: str) -> None:
    keys = _credentials.Credentials(session.access_key, session.secret_key, session.token)
    signer = _auth.SigV4Auth(keys, service, region)
    made.context["timestamp"] = at.astimezone(UTC).strftime(TIMESTAMP)
    signer._modify_request_before_signing(made)
    to_sign = signer.string_to_sign(made, signer.canonical_request(made))
    signer._inject_signature_to_request(made, signer.signature(to_sign, made))


def signed_right(host: str, headers: Mapping[str, str], body: bytes, session: RoleSession) -> bool:
    """Check a signature as AWS does: over the headers that arrived and that it names; ``headers`` in lower case."""
    match = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if match is None or match["key"] != session.access_key or headers.get("x-amz-security-token") != session.token:
        return False
    named = match["headers"].split(";")
    if not {"host", "x-amz-date", "x-amz-security-token"} <= set(named) or not set(named) <= set(headers):
        return False
    carried = {name: headers[name] for name in named if name not in {"x-amz-date", "x-amz-security-token"}}
    again = _awsrequest.AWSRequest(method="POST", url=f"https://{host}/", data=body, headers=carried)
    at = datetime.strptime(headers["x-amz-date"], TIMESTAMP).replace(tzinfo=UTC)
    _inject(again, session, at, match["service"], match["region"])
    return hmac.compare_digest(again.headers["Authorization"], headers["authorization"])
