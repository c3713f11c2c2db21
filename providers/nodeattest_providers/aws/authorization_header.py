"""The header set that SigV4 made, read in its one spelling: whose key, for which day, region and headers.

Promises: any text gives a value or ``Denied``; a value says exactly what the controller's own request will be: signed
with ``AWS4-HMAC-SHA256`` for STS in the region, on the day of ``x-amz-date``, over exactly the headers of the protocol.
Nothing of it can end a header or begin another.
Source: AWS, "Create a signed AWS API request", "Authorization header".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from nodeattest_providers.aws.protocol import SIGNED_HEADERS, SignedHeaders
from nodeattest_providers.errors import Denied, Reason

_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[A-Z0-9]{16,128})/(?P<day>[0-9]{8})/(?P<region>[a-z0-9-]{1,24})/"
    r"(?P<service>[a-z0-9]{1,32})/aws4_request, SignedHeaders=(?P<headers>[a-z0-9;-]{1,200}), "
    r"Signature=(?P<signature>[0-9a-f]{64})"
)
_DATE: Final = re.compile(r"20[0-9]{6}T[0-9]{6}Z")
_TIME: Final = "%Y%m%dT%H%M%SZ"
_TOKEN: Final = re.compile(r"[A-Za-z0-9+/=_-]{16,8192}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """What was signed, as claimed."""

    signed_at: datetime
    region: str
    service: str
    headers: tuple[str, ...]


def parse_authorization(sts: SignedHeaders) -> Authorization:
    """Read the header set; anything else is ``Denied``."""
    match = _AUTHORIZATION.fullmatch(sts.authorization)
    if match is None:
        raise _malformed("authorization: AWS4-HMAC-SHA256 with Credential, SignedHeaders and Signature", "another form")
    if not _DATE.fullmatch(sts.date):
        raise _malformed("x-amz-date: such as 20260301T120000Z", "another form")
    if not _TOKEN.fullmatch(sts.security_token):
        raise _malformed("x-amz-security-token: base64", "other characters")
    try:
        signed_at = datetime.strptime(sts.date, _TIME).replace(tzinfo=UTC)
    except ValueError:
        raise _malformed("x-amz-date: a time", "none that exists") from None
    if match["day"] != sts.date[:8]:
        raise _malformed("a credential scope of the day of x-amz-date", "another day")
    if match["service"] != "sts":
        raise _malformed("a credential scope of sts", f"one of {match['service']}")
    if match["headers"] != ";".join(SIGNED_HEADERS):
        raise _malformed(f"exactly the signed headers {', '.join(SIGNED_HEADERS)}", "others")
    return Authorization(signed_at=signed_at, region=match["region"], service=match["service"], headers=SIGNED_HEADERS)


def _malformed(expected: str, got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_PROOF_MALFORMED,
        expected=expected,
        got=got,
        remedy="sign with kubelet-authenticator and the instance's own role",
    )
