"""Checks of the node's certificates, before they are stored and before stored ones are used.

A certificate passes if it is for exactly this node and this key, issued by a CA of this cluster, and valid now. A wrong
clock and a wrong certificate are different errors.
Source: RFC 5280 §4.1.2.5, §4.2.1.9, §4.2.1.12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodeattest_authenticator.errors import AgentError, AgentReason
from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.settings import invalid
from nodeattest_authenticator.state.cache_files import MAX_CLOCK_SKEW, is_time_valid
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NODES_GROUP, ClusterPin, NodeName
from nodeattest_providers.node_interface import cluster_pin

if TYPE_CHECKING:
    from nodeattest_authenticator.settings import SubjectNames


_MAX_CHAIN: Final = 4
_MINUTE: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCertificate:
    """What the certificate must contain."""

    node_name: NodeName
    ca_pem: bytes
    names: SubjectNames | None = None
    """None for a client certificate; else a serving certificate with exactly these names."""


def validate(certificate_pem: bytes, key_pem: bytes, wanted: ExpectedCertificate) -> tuple[bytes, int, int]:
    """Check everything but the times. Return the chain in canonical PEM, notBefore and notAfter (epoch seconds).

    1. It is a PEM chain of at most four certificates, the leaf first.
    2. Its key is the node's.
    3. Its subject is exactly O ``system:nodes``, CN ``system:node:<name>``.
    4. It is not a CA certificate. A client certificate allows client authentication; a serving certificate allows
       server authentication only.
    5. A serving certificate has exactly the expected names.
    6. The chain ends at a CA of the cluster's bundle.
    Raises ``AgentError``.
    """
    # 1
    try:
        blocks = pem.certificates(certificate_pem)
        chain = [x509.load_der_x509_certificate(der) for der in blocks]
        key = load_pem_private_key(key_pem, password=None).public_key()
        spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except X509_ERRORS:
        raise _refused("it cannot be parsed") from None
    if not 1 <= len(chain) <= _MAX_CHAIN:
        raise _refused(f"expected 1 to {_MAX_CHAIN} certificates, got {len(chain)}")
    try:
        _check_leaf(chain[0], spki, wanted)
        _check_chain(chain, wanted.ca_pem)
    except X509_ERRORS:
        raise _refused("an extension or a name in it cannot be parsed") from None
    begin, end = (int(at.timestamp()) for at in (chain[0].not_valid_before_utc, chain[0].not_valid_after_utc))
    return pem.encode(blocks), begin, end


def check_validity(not_before: int, not_after: int, *, now: float, clock_skew: float | None) -> None:
    """Check the times; ``clock_skew``: seconds by which this machine's clock is ahead of the API server's, if known.

    Raises ``AgentError``: that the clock is off where this explains it, else that the certificate is of no use.
    """
    if is_time_valid(not_before, not_after, now):
        return
    early = now < not_before
    if clock_skew is not None and abs(clock_skew) > MAX_CLOCK_SKEW:
        direction = "ahead of" if clock_skew > 0 else "behind"
        raise _clock_off(f"it is {round(abs(clock_skew) / _MINUTE)} minutes {direction} the API server's")
    if early:
        raise _clock_off(f"the certificate begins {round((not_before - now) / _MINUTE)} minutes in its future")
    raise _refused("it has expired")


def check_credential(credential: CachedCredential, wanted: ExpectedCertificate, *, now: float) -> None:
    """Check a stored credential. Raises ``AgentError``."""
    _, not_before, not_after = validate(credential.certificate_pem, credential.key_pem, wanted)
    if (not_before, not_after) != (credential.not_before, credential.not_after):
        raise _refused("its times are not those that the cache file states")
    check_validity(not_before, not_after, now=now, clock_skew=None)


def ca_pins(ca_pem: bytes) -> list[str]:
    """Return the pins of a bundle's CAs for display, or an empty list if one cannot be parsed."""
    from nodeattest_discovery.pins import pin_of

    try:
        return [str(pin_of(certificate)) for certificate in x509.load_pem_x509_certificates(ca_pem)]
    except X509_ERRORS:
        return []


def is_issued_by(certificate_pem: bytes, ca_pem: bytes) -> bool:
    """Return whether the chain ends at a CA of this bundle."""
    try:
        _check_chain(_load(certificate_pem), ca_pem)
    except (AgentError, *X509_ERRORS):
        return False
    return True


def has_several(ca_pem: bytes) -> bool:
    """Return whether a bundle holds more than one certificate."""
    return len(pem.certificates(ca_pem)) > 1


def select_ca_pin(ca_pem: bytes, server_der: bytes | None = None) -> ClusterPin:
    """Return the pin of the CA that issued the server's certificate, or of the first CA.

    The controller accepts every CA of the cluster's bundle, so the choice only matters during a CA rotation.
    Raises ``AgentError`` if the bundle cannot be parsed.
    """
    try:
        bundle = _load(ca_pem)
        spkis = [ca.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for ca in bundle]
    except X509_ERRORS:
        raise invalid("certificateAuthority holds a certificate that cannot be parsed") from None
    if not bundle:
        raise invalid("certificateAuthority holds no certificate")
    chosen = 0
    if server_der is not None and len(bundle) > 1:
        server = x509.load_der_x509_certificate(server_der)
        chosen = next((number for number, ca in enumerate(bundle) if _issued(server, ca)), chosen)
    return cluster_pin(spkis[chosen])


def subject(certificate_pem: bytes) -> tuple[str, str]:
    """Return the subject (RFC 4514) and the serial number (hex) for display."""
    leaf = x509.load_pem_x509_certificate(certificate_pem)
    return leaf.subject.rfc4514_string(), f"{leaf.serial_number:x}"


def names_of(certificate_pem: bytes) -> tuple[list[str], list[str]]:
    """Return the DNS names and IP addresses of a serving certificate. Raises ValueError if it cannot be parsed."""
    try:
        return _alternative_names(x509.load_pem_x509_certificate(certificate_pem))
    except X509_ERRORS:
        raise ValueError("it or a name in it cannot be parsed") from None


def _check_leaf(leaf: x509.Certificate, spki: bytes, wanted: ExpectedCertificate) -> None:
    # 2
    if leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != spki:
        raise _refused("its key is not the node's")
    # 3
    names = {(attribute.oid, attribute.value) for attribute in leaf.subject}
    expected = {(NameOID.COMMON_NAME, NODE_USER_PREFIX + wanted.node_name), (NameOID.ORGANIZATION_NAME, NODES_GROUP)}
    if names != expected or len(leaf.subject) != len(expected):
        raise _refused(f"its subject is not O={NODES_GROUP}, CN={NODE_USER_PREFIX}{wanted.node_name}")
    # 4
    if _is_ca(leaf):
        raise _refused("it is a CA certificate")
    try:
        usages = list(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        usages = list[x509.ObjectIdentifier]()
    if wanted.names is None:
        if ExtendedKeyUsageOID.CLIENT_AUTH not in usages:
            raise _refused("it does not allow client authentication")
        return
    if usages != [ExtendedKeyUsageOID.SERVER_AUTH]:
        raise _refused("its extended key usage is not server authentication only")
    # 5
    if _alternative_names(leaf) != (sorted(wanted.names.dns_names), sorted(wanted.names.ip_addresses)):
        raise _refused("its names differ from the requested ones")


def _load(certificates_pem: bytes) -> list[x509.Certificate]:
    return [x509.load_der_x509_certificate(der) for der in pem.certificates(certificates_pem)]


def _check_chain(chain: Sequence[x509.Certificate], ca_pem: bytes) -> None:
    # 6. Signature by signature: the library's path builder wants a subject alternative name, which kubelet's client
    # certificates must not have (kubernetes pkg/apis/certificates/helpers.go).
    bundle = _load(ca_pem)
    for certificate, issuer in pairwise(chain):
        if not _is_ca(issuer) or not _issued(certificate, issuer):
            raise _refused("a certificate of its chain was not issued by the next one")
    if not any(_issued(chain[-1], ca) for ca in bundle):
        raise _refused("no CA of the cluster issued it")


def _alternative_names(leaf: x509.Certificate) -> tuple[list[str], list[str]]:
    """Return sorted DNS names and IP addresses. Raises ValueError for names of other types."""
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    dns = found.get_values_for_type(x509.DNSName)
    addresses = [str(address) for address in found.get_values_for_type(x509.IPAddress)]
    if len(dns) + len(addresses) != len(list(found)):
        raise ValueError("expected DNS names and IP addresses only")
    return sorted(dns), sorted(addresses)


def _is_ca(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def _refused(what: str) -> AgentError:
    return AgentError(
        AgentReason.CERTIFICATE_REFUSED,
        f"the certificate cannot be used: {what}",
        remedy="if this persists, check the signer of the cluster's node certificates",
    )


def _clock_off(what: str) -> AgentError:
    return AgentError(AgentReason.CLOCK_OFF, f"this machine's clock is wrong: {what}", remedy="set the clock (NTP)")
