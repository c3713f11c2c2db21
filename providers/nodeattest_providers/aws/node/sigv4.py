"""Signing the STS request with the instance's credentials, by botocore.

Source: AWS, "AWS Signature Version 4 for API requests"; botocore ``auth.SigV4Auth``, whose ``add_auth`` does the same
with a clock of its own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Protocol, cast

from nodeattest_providers.aws.node.imds import InstanceCredentials
from nodeattest_providers.aws.protocol import SIGNED_HEADERS, SignedHeaders, StsRequest
from nodeattest_providers.errors import platform_unavailable

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_DATE: Final = "%Y%m%dT%H%M%SZ"


class _Request(Protocol):
    """The part of botocore's ``AWSRequest`` that is used; botocore has no types."""

    context: dict[str, str]


class _Auth(Protocol):
    """The part of botocore's ``SigV4Auth`` that is used: all of it public."""

    def headers_to_sign(self, request: _Request) -> object: ...
    def signed_headers(self, headers_to_sign: object) -> str: ...
    def canonical_request(self, request: _Request) -> str: ...
    def string_to_sign(self, request: _Request, canonical_request: str) -> str: ...
    def signature(self, string_to_sign: str, request: _Request) -> str: ...
    def scope(self, request: _Request) -> str: ...


def sign(request: StsRequest, credentials: InstanceCredentials, *, now: datetime) -> SignedHeaders:
    """Sign the request as of ``now``; returns what travels. Raises Unavailable without botocore."""
    date = now.astimezone(UTC).strftime(_DATE)
    auth, signed = _prepare(request, credentials, date)
    names = auth.signed_headers(auth.headers_to_sign(signed))
    if names != ";".join(SIGNED_HEADERS):
        raise AssertionError(f"botocore signs other headers: {names}")
    signature = auth.signature(auth.string_to_sign(signed, auth.canonical_request(signed)), signed)
    return SignedHeaders(
        authorization=f"{_ALGORITHM} Credential={auth.scope(signed)}, SignedHeaders={names}, Signature={signature}",
        date=date,
        security_token=credentials.token,
    )


def _prepare(request: StsRequest, credentials: InstanceCredentials, date: str) -> tuple[_Auth, _Request]:
    try:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials
    except ImportError as error:
        raise platform_unavailable(
            f"the AWS library is missing ({error.name or 'botocore'})",
            remedy="install requirements-agent.txt of the release (docs/install.md)",
        ) from None
    secret = credentials.secret.reveal().decode()
    auth = SigV4Auth(Credentials(credentials.access_key_id, secret, credentials.token), "sts", request.region)
    headers = {**request.headers, "x-amz-date": date, "x-amz-security-token": credentials.token}
    signed = AWSRequest(method=request.method, url=request.url, data=request.body, headers=headers)
    typed = cast("_Request", signed)
    typed.context["timestamp"] = date
    return cast("_Auth", auth), typed
