"""The ``aws`` provider's attestor: what the metadata service signed, and a request that only its role can sign.

The credentials stay in this process. botocore is imported when something is to be signed.
Source: docs/wire-format.md, "aws/v1"; docs/providers/aws.md, "On the node"; botocore ``auth.SigV4Auth``, whose
``add_auth`` does the same with a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import sleep
from typing import Any, cast

from nodeattest_providers.aws import protocol
from nodeattest_providers.aws.node import NAME, InstanceCredentials, Session, parse_imds_document, parse_imds_signature
from nodeattest_providers.errors import platform_unavailable
from nodeattest_providers.metadata_service import MetadataAttestor
from nodeattest_providers.node_interface import Binding, Evidence, JsonValue, PublishedChallenge


def _utc_now() -> datetime:
    return datetime.now(UTC)


class AwsAttestor(MetadataAttestor):
    """Attests an EC2 instance."""

    provider = protocol.PROVIDER
    service_name = NAME

    def __init__(
        self,
        settings: Mapping[str, JsonValue],
        *,
        now: Callable[[], datetime] = _utc_now,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        super().__init__(settings, sleep=sleep)
        self._now = now

    def provider_id(self) -> str:
        return str(parse_imds_document(Session.begin(self._service).document()))

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        session = Session.begin(self._service)
        document = session.document()
        region = parse_imds_document(document).region
        pkcs7 = parse_imds_signature(session.signature())
        credentials, now = session.credentials(), self._now()
        if credentials.expiration <= now:
            raise platform_unavailable(
                "the credentials of the instance's role are out of date by this machine's clock",
                remedy="set the clock (chrony or systemd-timesyncd); if it is right, the metadata service is behind",
            )
        sts = sign(protocol.sts_request(region, binding), credentials, now=now)
        return Evidence(
            protocol.PROVIDER,
            protocol.VERSION,
            protocol.AwsEvidence(document=document, pkcs7=pkcs7, region=region, sts=sts).to_json(),
        )


def sign(request: protocol.StsRequest, credentials: InstanceCredentials, *, now: datetime) -> protocol.SignedHeaders:
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
    if names != ";".join(protocol.SIGNED_HEADERS):
        raise AssertionError(f"botocore signs other headers: {names}")
    signature = auth.signature(auth.string_to_sign(signed, auth.canonical_request(signed)), signed)
    scope = auth.scope(signed)
    return protocol.SignedHeaders(
        authorization=f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, Signature={signature}",
        date=date,
        security_token=credentials.token,
    )
