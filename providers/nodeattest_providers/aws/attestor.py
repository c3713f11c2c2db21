"""The ``aws`` provider's attestor: what the metadata service signed, and a request that only its role can sign.

The credentials stay in this process. botocore is imported when something is to be signed.
Source: docs/wire-format.md, "aws/v1"; docs/providers/aws.md, "On the node".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import sleep

from nodeattest_providers.aws.node.imds import ADDRESS, NAME, Session, parse_imds_document, parse_imds_signature
from nodeattest_providers.aws.node.sigv4 import sign
from nodeattest_providers.aws.protocol import PROVIDER, VERSION, AwsEvidence, sts_request
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import platform_unavailable
from nodeattest_providers.metadata_service import MetadataService, setting_of
from nodeattest_providers.node_interface import Evidence, JsonValue, PublishedChallenge


def _utc_now() -> datetime:
    return datetime.now(UTC)


class AwsAttestor:
    """Attests an EC2 instance; implements ``Attestor``. Its one setting, ``metadataEndpoint``, is rarely needed."""

    provider = PROVIDER
    versions: tuple[int, ...] = (VERSION,)
    two_step = False

    def __init__(
        self,
        settings: Mapping[str, JsonValue],
        *,
        now: Callable[[], datetime] = _utc_now,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        host, port = setting_of(PROVIDER, settings, f"http://{ADDRESS}")
        self._service = MetadataService(host, port, name=NAME, sleep=sleep)
        self._now = now

    def provider_id(self) -> str:
        """Return the instance's provider ID, as cloud-provider-aws spells it; raises Unavailable or Denied."""
        return str(parse_imds_document(Session.begin(self._service).document()))

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        """Make the evidence; Unavailable without metadata service, Denied without role or with strange answers."""
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
        sts = sign(sts_request(region, binding), credentials, now=now)
        return Evidence(
            PROVIDER, VERSION, AwsEvidence(document=document, pkcs7=pkcs7, region=region, sts=sts).to_json()
        )
