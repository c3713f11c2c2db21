"""A CA and a serving certificate of our own, and when what of them is made anew. Pure but for entropy.

Promises: whatever is served is signed by a CA that has been announced before; a CA that signed what may still be served
stays announced. ``advance`` takes one step at a time, each good to stop after: what the next step needs is in the
Secret. Leaves to others: the Secret and the announcement (``cert_rotator``).
Source: RFC 5280; Go crypto/x509, which is what verifies it (SAN only, EKU serverAuth).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_providers.x509_errors import X509_ERRORS

__all__ = ["CertificateSet", "Lifetimes", "Pair", "advance", "decode", "encode"]

_BACKDATE: Final = timedelta(minutes=5)
"""Clocks of API servers may be a little behind ours."""
_PARTS: Final = 3
"""A certificate is made anew when a third of its life is left."""
_COMMON_NAME: Final = "nodeattest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """How long things last."""

    authority: timedelta = timedelta(days=365)
    serving: timedelta = timedelta(days=90)
    announcement: timedelta = timedelta(hours=1)
    """How long a CA is announced before it signs: API servers learn of it by a watch, within seconds."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def pem(self) -> bytes:
        """The certificate."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The key."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSet:
    """All that is in the Secret."""

    authority: Pair
    """Signs now."""
    serving: Pair
    following: Pair | None = None
    """Will sign: announced already."""
    previous: x509.Certificate | None = None
    """Signed before."""

    @property
    def bundle(self) -> bytes:
        """What is to be announced (``caBundle``): every CA that may have signed what is served, now or soon."""
        others = (self.following.certificate if self.following else None, self.previous)
        return self.authority.pem + b"".join(one.public_bytes(Encoding.PEM) for one in others if one is not None)


def advance(
    held: CertificateSet | None, *, now: datetime, names: tuple[str, ...], lifetimes: Lifetimes, announced: bool
) -> CertificateSet | None:
    """Return what the Secret must hold next; None where all is well.

    ``announced``: whether API servers have been told of all of ``held.bundle``.
    1. There is nothing, or nothing that is still good: everything anew. 2. The next CA is due: it is made, and does not
    sign yet. 3. It has been announced for long enough: it signs from now on. 4. The serving certificate is due, is for
    other names, or is not by the CA that signs. 5. The previous CA has expired.
    """
    # 1
    if held is None or now >= held.authority.certificate.not_valid_after_utc:
        authority = _authority(now, lifetimes)
        return CertificateSet(authority=authority, serving=_serving(authority, now, names, lifetimes))
    # 2
    if held.following is None and _due(held.authority.certificate, now):
        return replace(held, following=_authority(now, lifetimes))
    # 3
    following = held.following
    if following is not None and announced and now >= _begin(following) + lifetimes.announcement:
        serving = _serving(following, now, names, lifetimes)
        return CertificateSet(authority=following, serving=serving, previous=held.authority.certificate)
    # 4
    if _unfit(held, now, names):
        return replace(held, serving=_serving(held.authority, now, names, lifetimes))
    # 5
    if held.previous is not None and now >= held.previous.not_valid_after_utc:
        return replace(held, previous=None)
    return None


def encode(held: CertificateSet) -> dict[str, bytes]:
    """Write the values of a Secret; ``ca.crt``, ``tls.crt`` and ``tls.key`` are named as cert-manager does."""
    data = {
        "ca.crt": held.authority.pem,
        "ca.key": held.authority.key_pem,
        "tls.crt": held.serving.pem,
        "tls.key": held.serving.key_pem,
    }
    if held.following is not None:
        data |= {"next-ca.crt": held.following.pem, "next-ca.key": held.following.key_pem}
    if held.previous is not None:
        data["previous-ca.crt"] = held.previous.public_bytes(Encoding.PEM)
    return data


def decode(data: Mapping[str, object]) -> CertificateSet | None:
    """Read the ``data`` of a Secret; None where it does not hold all that it must, each key its certificate's."""
    authority, serving = _pair(data, "ca"), _pair(data, "tls")
    if authority is None or serving is None:
        return None
    previous = _certificate(data, "previous-ca")
    return CertificateSet(authority=authority, serving=serving, following=_pair(data, "next-ca"), previous=previous)


def _pair(data: Mapping[str, object], name: str) -> Pair | None:
    certificate = _certificate(data, name)
    if certificate is None:
        return None
    try:
        key = load_pem_private_key(_bytes(data, f"{name}.key"), password=None)
        same = _public(key.public_key()) == _public(certificate.public_key())
    except X509_ERRORS:
        return None
    return Pair(certificate, key) if same and isinstance(key, ec.EllipticCurvePrivateKey) else None


def _certificate(data: Mapping[str, object], name: str) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(_bytes(data, f"{name}.crt"))
    except X509_ERRORS:
        return None


def _bytes(data: Mapping[str, object], name: str) -> bytes:
    try:
        return decode_base64(str(data.get(name, "")))
    except ValueError:
        return b""


def _public(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("not an elliptic curve key")
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _due(certificate: x509.Certificate, now: datetime) -> bool:
    made, end = certificate.not_valid_before_utc + _BACKDATE, certificate.not_valid_after_utc
    return now >= end - (end - made) / _PARTS


def _unfit(held: CertificateSet, now: datetime, names: tuple[str, ...]) -> bool:
    serving = held.serving.certificate
    if _due(serving, now) or _names_of(serving) != set(names):
        return True
    try:
        serving.verify_directly_issued_by(held.authority.certificate)
    except (InvalidSignature, *X509_ERRORS):
        return True
    return False


def _begin(pair: Pair) -> datetime:
    return pair.certificate.not_valid_before_utc + _BACKDATE


def _names_of(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except X509_ERRORS:
        return set()
    addresses = [str(address) for address in found.get_values_for_type(x509.IPAddress)]
    return {*found.get_values_for_type(x509.DNSName), *addresses}


def _authority(now: datetime, lifetimes: Lifetimes) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial in the name distinguishes one CA of ours from the next, by which Go finds the one that signed.
    serial = x509.random_serial_number()
    name = _name(f"{_COMMON_NAME} CA {serial & 0xFFFFFFFF:08x}")
    unsigned = (
        _builder(name, name, key, now, now + lifetimes.authority)
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Pair(unsigned.sign(key, hashes.SHA256()), key)


def _serving(authority: Pair, now: datetime, names: tuple[str, ...], lifetimes: Lifetimes) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + lifetimes.serving, authority.certificate.not_valid_after_utc)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    unsigned = (
        _builder(_name(_COMMON_NAME), authority.certificate.subject, key, now, until)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(issuer, critical=False)
    )
    return Pair(unsigned.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(until)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
