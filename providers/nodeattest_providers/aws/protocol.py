"""What attestor and verifier of the ``aws`` provider agree on: the evidence, and the one STS request that is signed.

Promises: a closed schema read to a value or ``Denied``, each value in one spelling. The request that the node signs is
fixed to the last byte but for region, time, session token and binding, so that the controller rebuilds it from its own
knowledge and takes from the evidence only what a signature covers: neither URL, nor method, nor body, nor the binding
header's value ever travels. What travels is of no use to AWS for anything else: the signature is for
``GetCallerIdentity``, which needs no permission and does nothing, and it holds the binding. Others who take such a
request for a login are kept off by the header's name, where they can be (``BINDING_HEADER``).
Source: docs/wire-format.md, "aws/v1"; AWS, "AWS Signature Version 4 for API requests", "GetCallerIdentity"; Vault,
``builtin/credential/aws/path_config_client.go`` (``validateAllowedSTSHeaderValues``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nodeattest_providers.aws.provider_id import partition_of
from nodeattest_providers.binding import Binding
from nodeattest_providers.canonical_json import Fields, b64encode
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import JsonObject

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
_DATE: Final = len("20260301T120000Z")
_MIN_REGION, _MAX_REGION = len("us-east-1"), 24


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHeaders:
    """The headers that SigV4 added, as the signer spelt them."""

    authorization: str = field(repr=False)
    date: str
    """``x-amz-date``."""
    security_token: str = field(repr=False)
    """``x-amz-security-token``: worth nothing without the secret key, which never travels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsEvidence:
    """The evidence block's object."""

    document: bytes = field(repr=False)
    """``dynamic/instance-identity/document``, the bytes as the metadata service gave them."""
    pkcs7: bytes = field(repr=False)
    """``dynamic/instance-identity/rsa2048`` in DER (the service gives base64 of BER; see ``definite_length``)."""
    region: str
    """Whose STS endpoint the request was signed for: the instance's own region."""
    sts: SignedHeaders

    def to_json(self) -> JsonObject:
        """Write the evidence block's object."""
        return {
            "document": b64encode(self.document),
            "pkcs7": b64encode(self.pkcs7),
            "region": self.region,
            "sts": {
                "authorization": self.sts.authorization,
                "x-amz-date": self.sts.date,
                "x-amz-security-token": self.sts.security_token,
            },
        }


def parse_evidence(data: JsonObject) -> AwsEvidence:
    """Read the evidence block's object; anything outside the schema is ``Denied``."""
    fields = Fields.of(data, "aws/v1", ("document", "pkcs7", "region", "sts"))
    sts = fields.nested("sts", ("authorization", "x-amz-date", "x-amz-security-token"))
    return AwsEvidence(
        document=fields.octets("document", 2, MAX_DOCUMENT),
        pkcs7=fields.octets("pkcs7", 1, MAX_PKCS7),
        region=fields.text("region", _MIN_REGION, _MAX_REGION),
        sts=SignedHeaders(
            authorization=sts.text("authorization", 1, MAX_AUTHORIZATION),
            date=sts.text("x-amz-date", _DATE, _DATE),
            security_token=sts.text("x-amz-security-token", 1, MAX_TOKEN),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StsRequest:
    """The request before it is signed. SigV4 adds ``x-amz-date``, ``x-amz-security-token``, ``authorization``."""

    region: str
    host: str
    binding: str
    """The binding header's value."""
    method: str = "POST"
    path: str = "/"
    body: bytes = b"Action=GetCallerIdentity&Version=2011-06-15"
    content_type: str = "application/x-www-form-urlencoded; charset=utf-8"

    @property
    def url(self) -> str:
        """The URL that is signed; where it is really sent may be configured on the controller."""
        return f"https://{self.host}{self.path}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of ``SIGNED_HEADERS`` that the signer does not add itself."""
        return {"content-type": self.content_type, "host": self.host, BINDING_HEADER: self.binding}


def sts_request(region: str, binding: Binding) -> StsRequest:
    """Build the request for a region and a binding; ``Denied`` for an unknown region."""
    return StsRequest(region=region, host=partition_of(region).sts_host(region), binding=binding.digest.hex())
