"""What attestor and verifier of ``aws`` agree on: evidence, the one STS request, provider IDs, partitions.

The controller builds the signed request again from its own knowledge, so neither URL, method, body nor binding travels.
Source: docs/wire-format.md, "aws/v1"; AWS, "Create a signed AWS API request", "Regions and Zones"; Vault,
``builtin/credential/aws``; kubernetes/cloud-provider-aws (provider IDs); botocore, ``partitions.json``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from nodeattest_providers.canonical_json import Fields, encoded
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Binding, JsonObject

PROVIDER: Final = ProviderName("aws")
VERSION: Final = 1

BINDING_HEADER: Final = "x-amz-nodeattest-binding"
"""Signed, never sent in the evidence; the value is the binding digest in lower-case hex.

Everybody who may read requests could show ours to a service that admits every identity that STS knows. Vault's and
Consul's AWS logins, where no server ID is configured, refuse ``X-Amz-`` headers that they do not know, and let any
other pass.
"""
SIGNED_HEADERS: Final = ("content-type", "host", "x-amz-date", BINDING_HEADER, "x-amz-security-token")
"""Exactly these, in this order, which is SigV4's: sorted."""

MAX_DOCUMENT: Final = 4096
"""Bytes; an instance identity document has about 500."""
MAX_PKCS7: Final = 8192
"""Bytes; with its document in it, and no certificate, about 1200."""
MAX_AUTHORIZATION: Final = 512
"""Characters; 260 with the longest region."""
MAX_TOKEN: Final = 8192
"""Characters; AWS names no limit, an instance's has about 1000."""
_DATE_LENGTH: Final = len("20260301T120000Z")
_MIN_REGION, _MAX_REGION = len("us-east-1"), 24


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHeaders:
    """The headers that SigV4 added, as the signer spelt them."""

    authorization: str = field(repr=False)
    date: str
    security_token: str = field(repr=False)
    """``x-amz-security-token``: worth nothing without the secret key, which never travels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsEvidence:
    """The evidence block's object."""

    document: bytes = field(repr=False)
    """``dynamic/instance-identity/document``, the bytes as the metadata service gave them."""
    pkcs7: bytes = field(repr=False)
    """``dynamic/instance-identity/rsa2048`` in DER (the service gives base64 of BER; see ``to_definite_length``)."""
    region: str
    """Whose STS endpoint the request was signed for: the instance's own region."""
    sts: SignedHeaders

    def to_json(self) -> JsonObject:
        sts: JsonObject = {
            "authorization": self.sts.authorization,
            "x-amz-date": self.sts.date,
            "x-amz-security-token": self.sts.security_token,
        }
        return encoded(document=self.document, pkcs7=self.pkcs7, region=self.region, sts=sts)


def parse_evidence(data: JsonObject) -> AwsEvidence:
    fields = Fields.of(data, "aws/v1", ("document", "pkcs7", "region", "sts"))
    sts = fields.nested("sts", ("authorization", "x-amz-date", "x-amz-security-token"))
    return AwsEvidence(
        document=fields.octets("document", 2, MAX_DOCUMENT),
        pkcs7=fields.octets("pkcs7", 1, MAX_PKCS7),
        region=fields.text("region", _MIN_REGION, _MAX_REGION),
        sts=SignedHeaders(
            authorization=sts.text("authorization", 1, MAX_AUTHORIZATION),
            date=sts.text("x-amz-date", _DATE_LENGTH, _DATE_LENGTH),
            security_token=sts.text("x-amz-security-token", 1, MAX_TOKEN),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StsRequest:
    """The POST request before it is signed. SigV4 adds ``x-amz-date``, ``x-amz-security-token``, ``authorization``."""

    region: str
    host: str
    binding: str
    body: bytes = b"Action=GetCallerIdentity&Version=2011-06-15"

    @property
    def origin(self) -> str:
        """The signed URL without its path, ``/``; where it is really sent may be configured on the controller."""
        return f"https://{self.host}"

    @property
    def headers(self) -> dict[str, str]:
        form = "application/x-www-form-urlencoded; charset=utf-8"
        return {"content-type": form, "host": self.host, BINDING_HEADER: self.binding}


def sts_request(region: str, binding: Binding) -> StsRequest:
    return StsRequest(region=region, host=partition_of(region).sts_host(region), binding=binding.digest.hex())


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of AWS with accounts, endpoints and credentials of its own."""

    name: str
    dns_suffix: str
    region_prefix: str
    """Regular expression of what its regions' names begin with, followed by ``-<place>-<number>``."""

    def sts_host(self, region: str) -> str:
        return f"sts.{region}.{self.dns_suffix}"


PARTITIONS: Final = (
    Partition("aws", "amazonaws.com", "(?!cn)[a-z]{2}"),
    Partition("aws-cn", "amazonaws.com.cn", "cn"),
    Partition("aws-eusc", "amazonaws.eu", "eusc-[a-z]{2}"),
    Partition("aws-iso", "c2s.ic.gov", "us-iso"),
    Partition("aws-iso-b", "sc2s.sgov.gov", "us-isob"),
    Partition("aws-iso-e", "cloud.adc-e.uk", "eu-isoe"),
    Partition("aws-iso-f", "csp.hci.ic.gov", "us-isof"),
    Partition("aws-us-gov", "amazonaws.com", "us-gov"),
)
PARTITION_NAME: Final = "|".join(partition.name for partition in PARTITIONS)
_REGIONS: Final = tuple(
    (partition, re.compile(rf"{partition.region_prefix}-[a-z]{{4,12}}-[1-9][0-9]?")) for partition in PARTITIONS
)
_KNOWN: Final = f"a region of the partitions {', '.join(partition.name for partition in PARTITIONS)}"

_PROVIDER_ID: Final = re.compile(r"aws:///(?P<zone>[a-z0-9-]{1,64})/(?P<instance>i-(?:[0-9a-f]{17}|[0-9a-f]{8}))")
_ZONE: Final = re.compile(
    rf"(?P<region>{'|'.join(pattern.pattern for _, pattern in _REGIONS)})(?:[a-z]|(?:-[a-z0-9]{{1,8}}){{2,4}})"
)
"""A region and a letter (``us-east-1a``), or the name of a local or wavelength zone (``us-west-2-lax-1a``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRef:
    """What a provider ID of AWS says."""

    zone: str
    region: str
    instance_id: str

    def __str__(self) -> str:
        return f"aws:///{self.zone}/{self.instance_id}"


def parse_provider_id(text: str) -> InstanceRef:
    match = _PROVIDER_ID.fullmatch(text)
    if match is None:
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected="aws:///<zone>/<instance id>, such as aws:///us-east-1a/i-0123456789abcdef0",
            got=repr(text[:80]),
            remedy="send the provider ID that the AWS infrastructure provider gives the Machine",
        )
    zone = _ZONE.fullmatch(match["zone"])
    if zone is None:
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected=f"a zone in {_KNOWN}",
            got=repr(match["zone"]),
            remedy="use a version of nodeattest that knows the zone's partition, if this is a zone of AWS",
        )
    return InstanceRef(zone=match["zone"], region=zone["region"], instance_id=match["instance"])


def partition_of(region: str) -> Partition:
    for partition, pattern in _REGIONS:
        if pattern.fullmatch(region):
            return partition
    raise Denied(
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        expected=_KNOWN,
        got=repr(region[:40]),
        remedy="correct the region, or use a version of nodeattest that knows its partition",
    )


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


def parse_authorization(sts: SignedHeaders) -> Authorization:
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
    return Authorization(signed_at=signed_at, region=match["region"])


def _malformed(expected: str, got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_PROOF_MALFORMED,
        expected=expected,
        got=got,
        remedy="sign with kubelet-authenticator and the instance's own role",
    )
