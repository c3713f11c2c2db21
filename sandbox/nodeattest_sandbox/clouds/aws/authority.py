"""The sandbox AWS's own keys: a CA for its HTTPS front, and a region's certificate for identity documents.

Promises: the CA is ECDSA and signs nothing but the front's certificate; a region's certificate is self-signed RSA-2048,
as AWS publishes one for each region. Private keys stay in the process that made them.
Source: AWS, "AWS public certificates for instance identity document signatures".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodeattest_sandbox.certificates import builder, usage

__all__ = ["FrontKeys", "RegionKey", "make_front_keys", "make_region_key"]

_RSA_BITS: Final = 2048


@dataclass(frozen=True, slots=True)
class FrontKeys:
    """The HTTPS front's certificate and key, and the CA that clients must trust; all PEM."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RegionKey:
    """What signs a region's identity documents."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey = field(repr=False)


def make_front_keys(names: Sequence[str]) -> FrontKeys:
    """Make a CA and a server certificate for these DNS names and loopback."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sandbox AWS CA")])
    ca = (
        builder(issuer, issuer, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signing=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sandbox AWS")])
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in (*names, "localhost")]
    alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    certificate = (
        builder(subject, issuer, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signing=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return FrontKeys(_pem(ca), _pem(certificate), private)


def make_region_key() -> RegionKey:
    """Make what signs the identity documents of one region."""
    key = rsa.generate_private_key(65537, _RSA_BITS)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "US"),
            x509.NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "Washington State"),
            x509.NameAttribute(NameOID.LOCALITY_NAME, "Seattle"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Sandbox Web Services"),
        ]
    )
    return RegionKey(builder(subject, subject, key.public_key()).sign(key, hashes.SHA256()), key)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
