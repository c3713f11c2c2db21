"""The parts that every certificate of the sandbox begins with: names, validity, key usage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

__all__ = ["LIFETIME", "builder", "usage"]

LIFETIME: Final = timedelta(days=365)
_BACKDATE: Final = timedelta(minutes=5)


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
) -> x509.CertificateBuilder:
    """Begin a certificate that is valid from a little ago for a year."""
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BACKDATE,
        not_valid_after=now + LIFETIME,
    )


def usage(*, signing: bool) -> x509.KeyUsage:
    """Make the key usage of an authority (``signing``) or of a server or user."""
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signing, crl_sign=signing, encipher_only=False, decipher_only=False,
    )  # fmt: skip
