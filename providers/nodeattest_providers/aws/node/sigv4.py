"""Signing the STS request with the instance's credentials, by botocore.

Source: AWS, "AWS Signature Version 4 for API requests"; botocore ``auth.SigV4Auth``, whose ``add_auth`` does the same
with a clock of its own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from nodeattest_providers.aws.node.imds import InstanceCredentials
from nodeattest_providers.aws.protocol import SIGNED_HEADERS, SignedHeaders, StsRequest
from nodeattest_providers.errors import platform_unavailable


def sign(request: StsRequest, credentials: InstanceCredentials, *, now: datetime) -> SignedHeaders:
    """Sign the request as of ``now``; returns what travels. Raises Unavailable without botocore."""
    try:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials
    except ImportError as error:
        raise platform_unavailable(
            f"the AWS library is missing ({error.name or 'botocore'})",
            remedy="install requirements-agent.txt of the release (docs/install.md)",
        ) from None
    date = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    keys = Credentials(credentials.access_key_id, credentials.secret.reveal().decode(), credentials.token)
    auth = cast("Any", SigV4Auth(keys, "sts", request.region))
    headers = {**request.headers, "x-amz-date": date, "x-amz-security-token": credentials.token}
    signed = cast("Any", AWSRequest(method="POST", url=f"{request.origin}/", data=request.body, headers=headers))
    signed.context["timestamp"] = date
    names = auth.signed_headers(auth.headers_to_sign(signed))
    if names != ";".join(SIGNED_HEADERS):
        raise AssertionError(f"botocore signs other headers: {names}")
    signature = auth.signature(auth.string_to_sign(signed, auth.canonical_request(signed)), signed)
    scope = auth.scope(signed)
    return SignedHeaders(
        authorization=f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}",
        date=date,
        security_token=credentials.token,
    )
