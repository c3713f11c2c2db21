"""The fixed keys and authorities of the seeds: no secret, the same in each run, so that seeds can be made again."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NODE_KEY: Final = ec.derive_private_key(0xC0FFEE, ec.SECP256R1())
"""The same as that of the published vectors."""
AUTHORITY_KEY: Final = ec.derive_private_key(0xCA, ec.SECP256R1())
TPM_KEY: Final = ec.derive_private_key(0xE4, ec.SECP256R1())
"""An endorsement key."""
NOW: Final = datetime(2026, 6, 1, tzinfo=UTC)
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_END: Final = datetime(2036, 1, 1, tzinfo=UTC)


def certificate(
    subject: list[tuple[x509.ObjectIdentifier, str]],
    key: ec.EllipticCurvePublicKey,
    *extensions: tuple[x509.ExtensionType, bool],
) -> x509.Certificate:
    """Make a certificate of the fixed authority."""
    name = x509.Name([x509.NameAttribute(kind, value) for kind, value in subject])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(_ISSUER).public_key(key)
    builder = builder.serial_number(7).not_valid_before(_BEGIN).not_valid_after(_END)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(AUTHORITY_KEY, hashes.SHA256(), ecdsa_deterministic=True)


@cache
def authority() -> x509.Certificate:
    """Return the authority's own certificate."""
    usages = {name: name in {"key_cert_sign", "crl_sign"} for name in USAGES}
    key = AUTHORITY_KEY.public_key()
    return certificate(
        [(NameOID.COMMON_NAME, "authority")],
        key,
        (x509.BasicConstraints(ca=True, path_length=None), True),
        (x509.KeyUsage(**usages), True),
        (x509.SubjectKeyIdentifier.from_public_key(key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(key), False),
    )


@cache
def kubelets_certificate() -> x509.Certificate:
    """Return a client certificate of the node ``node-0``."""
    subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, "system:node:node-0")]
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    return certificate(subject, NODE_KEY.public_key(), (usage, True))


def pem_of(found: x509.Certificate) -> bytes:
    """Write a certificate as PEM."""
    return found.public_bytes(Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Write a private key as PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


_ISSUER: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
