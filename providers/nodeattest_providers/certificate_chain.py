"""The chain from a TPM's or an instance's certificate to a configured authority, by RFC 5280, not by the web's rules.

Not checked: revocation. An intermediate with name constraints is refused.
Source: RFC 5280 §6.1; TCG EK Credential Profile 2.5 §3.2 to §3.5; docs/decisions.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from nodeattest_providers.config_fields import invalid
from nodeattest_providers.identifiers import printable

MAX_SIGNATURES: Final = 8
"""Signature checks of one chain; a maker's chain takes at most four. One by P-521 takes some 1 ms."""
_MAX_CHAIN: Final = 4
_RSA_BITS: Final = range(2048, 4097)
_MAX_EXPONENT: Final = 2**31 - 1
"""Of an RSA key: OpenSSL takes one as long as a key of 3,072 bits, and a check then takes 40 times as long."""
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_HASHES: Final = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_UNDERSTOOD: Final = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.CertificatePolicies)
"""Extensions of an authority that may be critical; any policy is accepted (RFC 5280 §6.1.1 (c), any-policy)."""
_ANY_USAGE: Final = x509.ObjectIdentifier("2.5.29.37.0")
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
_MAX_BUNDLE: Final = 1024
"""Certificates of a bundle; TPM makers have some 500 in all."""
_MAX_NAME: Final = 200
_T = TypeVar("_T", bound=x509.ExtensionType)


class ChainError(Exception):
    """Why there is no chain, in a few words."""


def check_readable(certificate: x509.Certificate) -> None:
    """Read what is read later: key, names, extensions and validity; raises one of ``X509_ERRORS``."""
    certificate.public_key()
    _ = (certificate.subject, certificate.issuer, certificate.extensions)
    _ = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def extension(certificate: x509.Certificate, kind: type[_T]) -> _T | None:
    return next((found.value for found in certificate.extensions if isinstance(found.value, kind)), None)


def describe(certificate: x509.Certificate) -> str:
    """Name a certificate's issuer and validity, which tell an operator what to add to a trust bundle."""
    issuer = printable(certificate.issuer.rfc4514_string(), _MAX_NAME)
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return f"issued by {issuer}, valid from {since:%Y-%m-%dT%H:%M:%SZ} to {until:%Y-%m-%dT%H:%M:%SZ}"


def parse_authorities(bundle: str, where: str) -> tuple[x509.Certificate, ...]:
    blocks = _PEM.findall(bundle)
    if not 1 <= len(blocks) == bundle.count("-----BEGIN") <= _MAX_BUNDLE:
        raise invalid(where, f"PEM certificates, 1 to {_MAX_BUNDLE}", f"{len(blocks)} and other text")
    return tuple(_authority(block, f"{where}, certificate {number}") for number, block in enumerate(blocks, 1))


def _authority(block: str, where: str) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(block.encode())
        check_readable(certificate)
        constraints = extension(certificate, x509.BasicConstraints)
    except X509_ERRORS as error:
        raise invalid(where, "a certificate that can be read, or none", type(error).__name__) from None
    if constraints is None or not constraints.ca:
        raise invalid(where, "CA certificates only", "a certificate that is no CA")
    return certificate


@dataclass(slots=True)
class ChainVerifier:
    """Looks for one chain; made for one certificate."""

    anchors: Sequence[x509.Certificate]
    """What the operator trusts, roots and intermediates alike; their own signatures are not checked."""
    now: datetime
    usage: x509.ObjectIdentifier
    """What the authorities certify keys for; an authority whose extended key usage lacks it counts for nothing."""
    checked: int = 0

    def verify(self, leaf: x509.Certificate, intermediates: Sequence[bytes]) -> None:
        """Raise ``ChainError`` unless there is a chain of valid certificates from the leaf to an anchor."""
        known = {anchor.public_bytes(Encoding.DER) for anchor in self.anchors}
        distinct = [der for der in dict.fromkeys(intermediates) if der not in known]
        try:
            between = [x509.load_der_x509_certificate(der) for der in distinct[:_MAX_CHAIN]]
            for certificate in between:
                check_readable(certificate)
        except X509_ERRORS as error:
            raise ChainError(f"an intermediate that cannot be read ({type(error).__name__})") from None
        self._check_validity(leaf)
        self._find_issuer(leaf, between, below=0)

    def _find_issuer(self, certificate: x509.Certificate, between: Sequence[x509.Certificate], *, below: int) -> None:
        """Find an issuer, anchors first, and its own one up to an anchor; raises the last problem where there is none.

        ``below``: authorities under it that are not self-issued.
        """
        problem = f"no certificate of its issuer among the authorities and intermediates: {describe(certificate)}"
        candidates = [(issuer, True) for issuer in _issuers(certificate, self.anchors)]
        candidates += [(issuer, False) for issuer in _issuers(certificate, between)]
        for issuer, is_anchor in candidates:
            try:
                self._check_validity(issuer)
                _check_authority(issuer, self.usage, below=below, is_anchor=is_anchor)
                self._check_signature(certificate, issuer)
                if not is_anchor:
                    left = [other for other in between if other is not issuer]
                    self._find_issuer(issuer, left, below=below + (issuer.subject != issuer.issuer))
            except ChainError as error:
                problem = str(error)
                if self.checked >= MAX_SIGNATURES:
                    raise
            else:
                return
        raise ChainError(problem)

    def _check_validity(self, certificate: x509.Certificate) -> None:
        if not certificate.not_valid_before_utc <= self.now <= certificate.not_valid_after_utc:
            raise ChainError(f"a certificate that is not valid now: {describe(certificate)}")

    def _check_signature(self, certificate: x509.Certificate, issuer: x509.Certificate) -> None:
        try:
            algorithm = certificate.signature_hash_algorithm
        except X509_ERRORS:
            algorithm = None
        if isinstance(algorithm, hashes.SHA1 | hashes.MD5):
            raise ChainError(f"a certificate signed with {algorithm.name.upper()}, which can be forged")
        if not isinstance(algorithm, _HASHES):
            raise ChainError("a certificate signed with an algorithm other than SHA-256, SHA-384 or SHA-512")
        if self.checked >= MAX_SIGNATURES:
            raise ChainError(f"more than {MAX_SIGNATURES} signatures to check")
        self.checked += 1
        try:
            certificate.verify_directly_issued_by(issuer)
        except (InvalidSignature, *X509_ERRORS):
            raise ChainError(f"a certificate whose signature is not its issuer's: {describe(certificate)}") from None


def leaf_problem(leaf: x509.Certificate) -> str | None:
    """Say why a certificate is not an end entity's that is understood here (RFC 5280 §4.2); None where it is one."""
    constraints = extension(leaf, x509.BasicConstraints)
    if constraints is not None and constraints.ca:
        return "a CA"
    unknown = unknown_extensions(leaf)
    return f"a certificate with the critical extension {unknown[0]}" if unknown else None


def unknown_extensions(leaf: x509.Certificate) -> list[str]:
    """Return the OIDs of critical extensions of a leaf that are not understood here; any policy is accepted."""
    understood = (*_UNDERSTOOD, x509.SubjectAlternativeName)
    return [
        each.oid.dotted_string for each in leaf.extensions if each.critical and not isinstance(each.value, understood)
    ]


def chain_problem(
    leaf: x509.Certificate,
    intermediates: Sequence[bytes],
    anchors: Sequence[x509.Certificate],
    now: datetime,
    usage: x509.ObjectIdentifier,
) -> str | None:
    """Say why there is no chain from the leaf to an anchor; None when there is one."""
    try:
        ChainVerifier(anchors, now, usage).verify(leaf, intermediates)
    except ChainError as error:
        return str(error)
    return None


def _issuers(certificate: x509.Certificate, candidates: Sequence[x509.Certificate]) -> Iterator[x509.Certificate]:
    """Give the candidates with the issuer's name; those with the key identifier first (RFC 5280 §4.2.1.1)."""
    wanted = extension(certificate, x509.AuthorityKeyIdentifier)
    named = [each for each in candidates if each.subject == certificate.issuer]

    def differs(candidate: x509.Certificate) -> bool:
        own = extension(candidate, x509.SubjectKeyIdentifier)
        return own is None or wanted is None or own.digest != wanted.key_identifier

    yield from sorted(named, key=differs)


def _check_authority(
    authority: x509.Certificate, wanted: x509.ObjectIdentifier, *, below: int, is_anchor: bool
) -> None:
    """Check that a certificate may issue certificates of the wanted usage.

    1. It is a CA (RFC 5280 §6.1.4 (k)), marked critical. 2. Its path length allows what is below ((l), (m)).
    3. It may sign certificates ((n)). 4. Its extended key usage, where it has one, includes the wanted. 5. It has no
    critical extension that is not understood ((o)), and no name constraints, critical or not ((g)). 6. Its key is of a
    kind and length that is cheap to verify with.
    An anchor is the operator's word: it must be a CA with such a key, and its path length holds.
    """
    constraints = extension(authority, x509.BasicConstraints)
    if constraints is None or not constraints.ca:  # 1
        raise ChainError("an issuer that is no CA")
    if constraints.path_length is not None and constraints.path_length < below:  # 2
        raise ChainError("more authorities than a path length allows")
    if not is_anchor:
        usage, purposes = extension(authority, x509.KeyUsage), extension(authority, x509.ExtendedKeyUsage)
        if usage is None or not usage.key_cert_sign:  # 3
            raise ChainError("an issuer whose key usage lacks keyCertSign")
        if purposes is not None and not {wanted, _ANY_USAGE} & set(purposes):  # 4
            raise ChainError(f"an issuer whose extended key usage lacks {wanted.dotted_string}")
        found = list(authority.extensions)
        if x509.BasicConstraints.oid not in {each.oid for each in found if each.critical}:
            raise ChainError("an issuer whose basic constraints are not critical")
        odd = [each for each in found if each.critical or isinstance(each.value, x509.NameConstraints)]
        unknown = [each.oid.dotted_string for each in odd if not isinstance(each.value, _UNDERSTOOD)]
        if unknown:  # 5
            raise ChainError(f"an issuer with the extension {unknown[0]}, which is not evaluated here")
    key = authority.public_key()  # 6
    is_rsa = isinstance(key, rsa.RSAPublicKey) and key.key_size in _RSA_BITS
    if isinstance(key, rsa.RSAPublicKey) and key.public_numbers().e > _MAX_EXPONENT:
        raise ChainError("an issuer with an RSA exponent of more than 31 bits")
    if not is_rsa and not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES)):
        raise ChainError("an issuer whose key is neither RSA of 2048 to 4096 bits nor P-256, P-384 or P-521")


X509_ERRORS: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
