"""The cluster's certificate authority: reading ``<cluster>-ca``, making a kubelet's certificate. Pure but for entropy.

The subject is rebuilt from scratch; of the request only the public key is copied, and into a serving certificate the
names that were reviewed. Sources: RFC 5280 section 4.2, kubernetes pkg/controller/certificates/authority/policies.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Final, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from nodeattest_parsing.objects import rfc3339, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.certificate_chain import X509_ERRORS, check_readable
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import ClusterPin, NodeName, Purpose
from nodeattest_providers.keys import PublicKey
from nodeattest_providers.node_interface import cluster_pin
from nodeattest_providers.pkcs10 import kubelet_subject

BACKDATE: Final = timedelta(minutes=5)
"""kubernetes pkg/controller/certificates/signer: tolerate clocks that are a little behind."""
_PRIVATE = (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)
_USAGES: Final = {
    "digital_signature": True,
    "content_commitment": False,
    "data_encipherment": False,
    "key_agreement": False,
    "key_cert_sign": False,
    "crl_sign": False,
    "encipher_only": False,
    "decipher_only": False,
}
"""A kubelet's key usages; one with an RSA key has key encipherment, too."""
MAX_PEM: Final = 128 << 10
"""Characters of base64, of the bundle and of the key each; a certificate has some 1,500."""
MAX_RSA_BITS: Final = 4096
"""As kubeadm's largest CA. To sign takes time cubic in the length: 5 ms with 4,096 bits, 0.3 s with 16,384."""


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """The CA that signs, and every CA that nodes may trust now."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = field(repr=False)
    pins: frozenset[ClusterPin]


@dataclass(frozen=True, slots=True)
class SubjectAltNames:
    """What a serving certificate is good for; a client certificate has none."""

    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()
    """Normalised text form."""

    def __bool__(self) -> bool:
        return bool(self.dns_names or self.ip_addresses)

    def same_as(self, other: SubjectAltNames) -> bool:
        return set(self.dns_names) == set(other.dns_names) and set(self.ip_addresses) == set(other.ip_addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCertificate:
    """A signed certificate."""

    pem: str = field(repr=False)
    serial: str
    """Lower-case hex."""
    not_before: datetime
    not_after: datetime


def load_authority(secret: JsonObject | None, cluster: str) -> CertificateAuthority:
    """Read the ``<cluster>-ca`` Secret; raises Unavailable that names what is missing."""
    if secret is None:
        raise _unavailable(f"Secret {cluster}-ca is absent", f"create Secret {cluster}-ca with tls.crt and tls.key")
    try:
        chain, key_pem = (_decoded(secret, name) for name in ("tls.crt", "tls.key"))
        if not key_pem:
            remedy = "an external CA cannot sign here: put the CA's key into the Secret"
            raise _unavailable(f"Secret {cluster}-ca has a certificate but no tls.key", remedy)
        certificates = x509.load_pem_x509_certificates(chain)
        for certificate in certificates:
            check_readable(certificate)
        pins = bundle_pins(certificates)
        # Proving an RSA key's primes takes 0.2 s for 4,096 bits and 40 s for 16,384; _check_rsa does what is needed.
        key = serialization.load_pem_private_key(key_pem, password=None, unsafe_skip_rsa_key_validation=True)
    except X509_ERRORS as error:
        raise _unavailable(f"Secret {cluster}-ca is not a PEM certificate and key", "repair the Secret") from error
    if not isinstance(key, _PRIVATE):
        raise _unavailable(f"the key in Secret {cluster}-ca is neither RSA nor ECDSA", "use an RSA or ECDSA CA")
    if isinstance(key, rsa.RSAPrivateKey):
        _check_rsa(key, cluster)
    signing = next((cert for cert in certificates if cert.public_key() == key.public_key()), None)
    if signing is None:
        raise _unavailable(f"tls.key in Secret {cluster}-ca belongs to none of its certificates", "repair the Secret")
    return CertificateAuthority(signing, key, pins)


def _check_rsa(key: rsa.RSAPrivateKey, cluster: str) -> None:
    """Refuse an RSA key that is too long, or whose numbers do not belong together (RFC 8017 section 3.2).

    Its factors are not proved to be primes: with others nobody accepts its signatures.
    """
    if key.key_size > MAX_RSA_BITS:
        remedy = f"use an RSA CA of at most {MAX_RSA_BITS} bits"
        raise _unavailable(f"the key in Secret {cluster}-ca has {key.key_size} bits", remedy)
    numbers = key.private_numbers()
    p, q, d, e = numbers.p, numbers.q, numbers.d, numbers.public_numbers.e
    fits = (
        min(p, q) > 1
        and p % 2 == q % 2 == e % 2 == 1
        and p * q == numbers.public_numbers.n
        and (numbers.dmp1, numbers.dmq1) == (d % (p - 1), d % (q - 1))
        and numbers.iqmp * q % p == 1
        and e * d % (p - 1) == e * d % (q - 1) == 1
    )
    if not fits:
        raise _unavailable(f"the key in Secret {cluster}-ca is no sound RSA key", "repair the Secret")


def bundle_pins(certificates: list[x509.Certificate]) -> frozenset[ClusterPin]:
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return frozenset(
        cluster_pin(certificate.public_key().public_bytes(serialization.Encoding.DER, spki))
        for certificate in certificates
    )


def sign_certificate(
    authority: CertificateAuthority,
    *,
    node_name: NodeName,
    spki: bytes,
    lifetime: int,
    now: datetime,
    created: datetime | None = None,
    server_time: datetime | None = None,
    purpose: Purpose = Purpose.CLIENT,
    names: SubjectAltNames = SubjectAltNames(),
) -> SignedCertificate:
    """Make a kubelet's certificate; raises Unavailable outside the CA's validity.

    ``lifetime``: seconds from the earlier of ``now`` and ``server_time``, the API server's clock, which so can only
    shorten it; clamped to the CA's end. ``created``: the request's time by that clock; valid from then on.
    ``names``: of a serving certificate, which needs at least one; a client certificate has none.
    """
    if bool(names) is not (purpose is Purpose.SERVING):
        raise ValueError("a serving certificate has names, a client certificate has none")
    public_key = cast("PublicKey", serialization.load_der_public_key(spki))  # no other passes the envelope
    now = now.replace(microsecond=0)
    ca = authority.certificate
    begin = min(now, created) if created is not None else now
    not_before = begin - BACKDATE if begin - ca.not_valid_before_utc > BACKDATE else ca.not_valid_before_utc
    from_now = now if server_time is None else min(now, server_time.replace(microsecond=0))
    not_after = min(from_now + timedelta(seconds=lifetime), ca.not_valid_after_utc)
    _check_validity(ca, now)
    earliest = not_before if created is None else max(not_before, created)
    if not_after <= earliest:  # also if a clock is behind: no certificate expires before it begins
        raise _unavailable(
            f"expected a lifetime that ends after {rfc3339(earliest)}, got one that ends {rfc3339(not_after)}",
            "set the clock of the controller's machine, and of the workload cluster's API server",
        )
    number = x509.random_serial_number()
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if purpose is Purpose.CLIENT else ExtendedKeyUsageOID.SERVER_AUTH
    is_rsa = isinstance(public_key, rsa.RSAPublicKey)
    builder = (
        x509.CertificateBuilder()
        .issuer_name(ca.subject)
        .subject_name(kubelet_subject(node_name))
        .public_key(public_key)
        .serial_number(number)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(key_encipherment=is_rsa, **_USAGES), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(_authority_key_identifier(authority), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )
    if names:
        addresses = [x509.IPAddress(ip_address(each)) for each in names.ip_addresses]
        own = x509.SubjectAlternativeName([*map(x509.DNSName, names.dns_names), *addresses])
        builder = builder.add_extension(own, critical=False)
    wide = isinstance(authority.key, ec.EllipticCurvePrivateKey) and authority.key.key_size > 256  # noqa: PLR2004 - bits
    certificate = builder.sign(authority.key, hashes.SHA384() if wide else hashes.SHA256())
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    return SignedCertificate(pem=pem, serial=f"{number:x}", not_before=not_before, not_after=not_after)


def names_in(pem: str) -> SubjectAltNames:
    """Read the names of a certificate that ``sign_certificate`` made."""
    certificate = x509.load_pem_x509_certificate(pem.encode())
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return SubjectAltNames()
    addresses = found.get_values_for_type(x509.IPAddress)
    return SubjectAltNames(tuple(found.get_values_for_type(x509.DNSName)), tuple(map(str, addresses)))


def _check_validity(ca: x509.Certificate, now: datetime) -> None:
    """Refuse an expired CA, and one whose validity begins later than a clock that is a little behind explains."""
    begin, end = ca.not_valid_before_utc, ca.not_valid_after_utc
    expected = f"expected a CA that is valid now, {rfc3339(now)}, got one that"
    if end <= now:
        raise _unavailable(f"{expected} expired {rfc3339(end)}", "renew the cluster's CA")
    if now + BACKDATE < begin:
        remedy = "set the clock of the controller's machine, or correct the cluster's CA"
        raise _unavailable(f"{expected} is valid from {rfc3339(begin)}", remedy)


def _authority_key_identifier(authority: CertificateAuthority) -> x509.AuthorityKeyIdentifier:
    """Copy the CA's own identifier where it has one (RFC 5280 section 4.2.1.1)."""
    try:
        identifier = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _decoded(secret: JsonObject, name: str) -> bytes:
    encoded = text(secret, "data", name)
    return decode_base64(encoded) if len(encoded) <= MAX_PEM else b""


def _unavailable(detail: str, remedy: str) -> Unavailable:
    return Unavailable(Reason.AUTHORITY_UNAVAILABLE, detail, remedy=remedy, retry_after=30.0)
