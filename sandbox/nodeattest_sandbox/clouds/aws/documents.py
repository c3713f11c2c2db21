"""A region's certificate for identity documents: self-signed RSA-2048, as AWS publishes one for each region.

Private keys stay in the process that made them.
Source: AWS, "AWS public certificates for instance identity document signatures".

Instance identity documents and their signatures, in the shapes in which AWS gives them.

Leaves the signature's structure to ``clouds.cms``: SignedData in BER, given in base64 without armour.
Source: AWS, "Instance identity documents", "Use the RSA-2048 signature to verify the instance identity document".
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from nodeattest_sandbox.clouds.cms import aws_form
from nodeattest_sandbox.pki import builder


@dataclass(frozen=True, slots=True)
class RegionKey:
    """What signs a region's identity documents."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey = field(repr=False)


def make_region_key() -> RegionKey:
    """Make what signs the identity documents of one region."""
    key = rsa.generate_private_key(65537, 2048)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "US"),
            x509.NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "Washington State"),
            x509.NameAttribute(NameOID.LOCALITY_NAME, "Seattle"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Sandbox Web Services"),
        ]
    )
    return RegionKey(builder(subject, subject, key.public_key()).sign(key, hashes.SHA256()), key)


_LINE: Final = 64
"""Characters of base64 a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What the document says of an instance."""

    account: str
    region: str
    zone: str
    instance_id: str
    image: str
    kind: str
    private_ip: str
    pending: datetime


def document(place: Placement) -> bytes:
    """Write the document as AWS spaces it."""
    values: dict[str, object] = {
        "accountId": place.account,
        "architecture": "x86_64",
        "availabilityZone": place.zone,
        "billingProducts": None,
        "devpayProductCodes": None,
        "imageId": place.image,
        "instanceId": place.instance_id,
        "instanceType": place.kind,
        "kernelId": None,
        "marketplaceProductCodes": None,
        "pendingTime": place.pending.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "privateIp": place.private_ip,
        "ramdiskId": None,
        "region": place.region,
        "version": "2017-09-30",
    }
    return json.dumps(values, indent=2, separators=(",", " : ")).encode()


def signature(content: bytes, region: RegionKey, *, now: datetime) -> bytes:
    """Sign a document as ``dynamic/instance-identity/rsa2048`` gives it."""
    text = base64.b64encode(aws_form(content, region.key, region.certificate, now).streamed())
    return b"\n".join(text[start : start + _LINE] for start in range(0, len(text), _LINE))
