"""Documents to spoil: an authority-less signer, and its document in Azure's and in AWS's form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from clouds import cms as write

NOW: Final = datetime(2026, 6, 1, 12, tzinfo=UTC)
CONTENT: Final = b'{"vmId":"02aab8a4-74ef-476e-8182-f6d2ba4166a6"}'


@cache
def key(bits: int = 2048) -> rsa.RSAPrivateKey:
    """Make an RSA key, once for all tests."""
    return rsa.generate_private_key(65537, bits)


def certificate(
    signer: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, *, serial: int = 0x90, name: str = "metadata.azure.com"
) -> x509.Certificate:
    """Let a key certify itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).serial_number(serial)
    builder = builder.public_key(signer.public_key()).not_valid_before(NOW).not_valid_after(NOW + timedelta(days=1))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(signer.public_key()), critical=False).sign(
        signer, hashes.SHA256()
    )


def azure() -> write.Document:
    """Return a sound document in Azure's form."""
    return write.azure_form(CONTENT, key(), certificate(key()))


def aws() -> write.Document:
    """Return a sound document in AWS's form, to be written as DER."""
    return write.aws_form(CONTENT, key(), certificate(key()), NOW)
