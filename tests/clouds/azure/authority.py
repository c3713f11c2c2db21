"""Who signs the sandbox's attested documents: a chain as Azure's, of root, issuing authority and signer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodeattest_sandbox.pki import usage

_DAY: Final = timedelta(days=1)
_BITS: Final = 2048


@dataclass(frozen=True)
class Issuer:
    """A certificate authority."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    @classmethod
    def root(cls, name: str) -> Issuer:
        """Make a root."""
        key = _key()
        return cls(_certify(name, key, name, key, ca=True, names=()), key)

    def issuing(self, name: str) -> Issuer:
        """Make an authority below."""
        key = _key()
        return Issuer(_certify(name, key, self._name, self.key, ca=True, names=()), key)

    def issue(
        self, name: str, names: Sequence[x509.GeneralName], *, now: datetime | None = None
    ) -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
        """Certify a TLS server."""
        key = _key()
        return _certify(name, key, self._name, self.key, ca=False, names=names, now=now), key

    @property
    def _name(self) -> str:
        return str(self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def signer_of(
    issuer: Issuer, domain: str = "metadata.azure.com", region: str = "westeurope"
) -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
    """Make who signs the attested documents of a region."""
    return issuer.issue(domain, [x509.DNSName(domain), x509.DNSName(f"{region}.{domain}")])


def pem(*certificates: x509.Certificate) -> bytes:
    """Write certificates as PEM."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, _BITS)


def _certify(
    name: str,
    key: rsa.RSAPrivateKey,
    issuer: str,
    signing: rsa.RSAPrivateKey,
    *,
    ca: bool,
    names: Sequence[x509.GeneralName],
    now: datetime | None = None,
) -> x509.Certificate:
    begin = (now or datetime.now(UTC)) - _DAY
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + 365 * _DAY)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(usage(signing=ca), critical=True)
    )
    if not ca:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signing, hashes.SHA256())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
