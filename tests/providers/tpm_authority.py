"""A manufacturer's CA for the tests, whose certificates can be wrong in one thing."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from tpm_world import NOW

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
Extension = tuple[x509.ExtensionType, bool]

EK_USAGE = x509.ObjectIdentifier("2.23.133.8.1")
YEAR = timedelta(days=365)


def key_usage(*usages: str) -> x509.KeyUsage:
    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    names += ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    assert set(usages) <= set(names)
    return x509.KeyUsage(**{name: name in usages for name in names})


def name_of(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


TPM_MODEL = x509.SubjectAlternativeName(
    [x509.DirectoryName(x509.Name([x509.NameAttribute(x509.ObjectIdentifier("2.23.133.2.1"), "id:00001014")]))]
)
EKU: Extension = (x509.ExtendedKeyUsage([EK_USAGE]), False)
NOT_CA: Extension = (x509.BasicConstraints(ca=False, path_length=None), True)
SAN: Extension = (TPM_MODEL, True)


def leaf_extensions(key: PublicKey) -> dict[str, Extension]:
    """List what swtpm's endorsement certificates have, by a short name, so that a row can drop or change one."""
    usage = "key_encipherment" if isinstance(key, rsa.RSAPublicKey) else "key_agreement"
    return {"eku": EKU, "san": SAN, "bc": NOT_CA, "ku": (key_usage(usage), True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """One CA certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def root(cls) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(certificate=_sign_ca("TPM root", key, "TPM root", key), key=key)

    def issuer(self, *, ca: bool = True, not_after: datetime = NOW + 10 * YEAR) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = _common(self.certificate)
        signed = _sign_ca("TPM issuer", key, issuer, self.key, ca=ca, not_after=not_after)
        return Authority(certificate=signed, key=key)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    def endorse(
        self,
        key: PublicKey,
        *,
        extensions: dict[str, Extension] | None = None,
        not_before: datetime = NOW - YEAR,
        not_after: datetime = NOW + YEAR,
    ) -> bytes:
        """Issue an endorsement certificate (DER)."""
        chosen = leaf_extensions(key) if extensions is None else extensions
        builder = _builder("unknown", key, _common(self.certificate), not_before, not_after)
        for value, critical in chosen.values():
            builder = builder.add_extension(value, critical)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
        )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.DER)


def self_signed(key: Key) -> bytes:
    """Make an endorsement certificate that nobody vouches for."""
    builder = _builder("unknown", key.public_key(), "unknown", NOW - YEAR, NOW + YEAR)
    for value, critical in leaf_extensions(key.public_key()).values():
        builder = builder.add_extension(value, critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def _common(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _builder(
    subject: str, key: PublicKey, issuer: str, not_before: datetime, not_after: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name_of(subject))
        .issuer_name(name_of(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
    )


def _sign_ca(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    ca: bool = True,
    not_after: datetime = NOW + 10 * YEAR,
) -> x509.Certificate:
    builder = _builder(subject, key.public_key(), issuer, NOW - 2 * YEAR, not_after)
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    builder = builder.add_extension(key_usage("key_cert_sign", "crl_sign"), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return builder.add_extension(authority, critical=False).sign(issuer_key, hashes.SHA256())
