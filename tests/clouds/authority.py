"""Certificates for the tests: authorities and what they issue, each part of it a test's to choose."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
Extension = tuple[x509.ExtensionType, bool]
"""With whether it is critical."""
BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)
END: Final = datetime(2045, 1, 1, tzinfo=UTC)
_USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def named(common: str, *units: str) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    return x509.Name([*attributes, *(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units)])


def key_usage(*usages: str) -> Extension:
    assert set(usages) <= set(_USAGES)
    return x509.KeyUsage(**{name: name in usages for name in _USAGES}), True


def constraint(path_length: int | None = None, *, ca: bool = True, critical: bool = True) -> Extension:
    return x509.BasicConstraints(ca=ca, path_length=path_length), critical


def purposes(*usages: x509.ObjectIdentifier) -> Extension:
    return x509.ExtendedKeyUsage(usages), False


CA: Final = (constraint(), key_usage("key_cert_sign", "crl_sign"))


def certify(
    name: x509.Name | str,
    key: PublicKey,
    issuer: x509.Name | str,
    by: Key,
    *extensions: Extension,
    begin: datetime = BEGIN,
    end: datetime = END,
    serial: int | None = None,
    algorithm: hashes.SHA224 | hashes.SHA256 | None = None,
) -> x509.Certificate:
    subject, issuer = (named(one) if isinstance(one, str) else one for one in (name, issuer))
    builder = x509.CertificateBuilder(issuer, subject, key, serial or x509.random_serial_number(), begin, end)
    identifiers = (
        (x509.SubjectKeyIdentifier.from_public_key(key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), False),
    )
    for value, critical in (*extensions, *identifiers):
        builder = builder.add_extension(value, critical)
    return builder.sign(by, algorithm or hashes.SHA256())


@dataclass(frozen=True)
class Authority:
    """A certificate and its key; it issues, whatever its certificate says."""

    certificate: x509.Certificate
    key: Key = field(repr=False)

    @classmethod
    def root(cls, name: str = "root", *extensions: Extension, key: Key | None = None) -> Authority:
        key = key or ec.generate_private_key(ec.SECP256R1())
        return cls(certify(name, key.public_key(), name, key, *(extensions or CA)), key)

    def below(
        self, name: x509.Name | str, *extensions: Extension, begin: datetime = BEGIN, end: datetime = END
    ) -> Authority:
        """Certify a new key of the same kind; of an authority unless the extensions say otherwise."""
        key = rsa_key() if isinstance(self.key, rsa.RSAPrivateKey) else ec.generate_private_key(self.key.curve)
        made = self.issue(name, key.public_key(), *(extensions or CA), begin=begin, end=end)
        return Authority(made, key)

    def issue(
        self,
        name: x509.Name | str,
        key: PublicKey,
        *extensions: Extension,
        begin: datetime = BEGIN,
        end: datetime = END,
    ) -> x509.Certificate:
        return certify(name, key, self.certificate.subject, self.key, *extensions, begin=begin, end=end)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()
