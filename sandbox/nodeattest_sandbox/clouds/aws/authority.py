"""A region's certificate for identity documents: self-signed RSA-2048, as AWS publishes one for each region.

Private keys stay in the process that made them.
Source: AWS, "AWS public certificates for instance identity document signatures".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from nodeattest_sandbox.certificates import builder

__all__ = ["RegionKey", "make_region_key"]


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
