"""Endorsement key certificates: a manufacturer certifies that this key is in a TPM.

Promises: returns only when the certificate is for this very key, is an endorsement certificate, and chains to a
configured authority at the given time.
Source: TCG EK Credential Profile 2.5, §3.2 "X.509 ASN.1 Definitions"; RFC 5280 §6.1, §4.2.1;
docs/wire-format.md §3, step 4; docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_providers.certificate_chain import ChainError, ChainVerifier, check_readable, extension
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.public_area import PublicArea
from nodeattest_providers.x509_errors import X509_ERRORS

EK_USAGE: Final = x509.ObjectIdentifier("2.23.133.8.1")
"""tcg-kp-EKCertificate."""
_SECTION: Final = "TCG EK Credential Profile §3.2"
_REMEDY: Final = (
    "use a TPM whose endorsement certificate is sound, or register its endorsement key (spec.tpm.endorsementKeys)"
)
_TPM_ATTRIBUTES: Final = frozenset(x509.ObjectIdentifier(f"2.23.133.2.{number}") for number in (1, 2, 3))
"""tcg-at-tpmManufacturer, tcg-at-tpmModel and tcg-at-tpmVersion."""
_UNDERSTOOD: Final = (
    x509.BasicConstraints,
    x509.KeyUsage,
    x509.ExtendedKeyUsage,
    x509.SubjectAlternativeName,
    x509.CertificatePolicies,
)
"""Extensions that may be critical: three are checked, directory names identify a TPM model, any policy is accepted."""


def check_certificate(
    checks: Checks,
    ek: PublicArea,
    certificate: bytes,
    chain: tuple[bytes, ...],
    *,
    anchors: Sequence[x509.Certificate],
    now: datetime,
) -> None:
    """Check an endorsement certificate (DER) with its intermediates.

    1. It can be read, and certifies exactly this key.
    2. It is no CA certificate (RFC 5280 §4.2.1.9).
    3. Its extended key usage holds tcg-kp-EKCertificate, or it has none and names a TPM: other leaves of that CA are
       no TPMs.
    4. Its key usage is keyEncipherment (RSA) or keyAgreement (elliptic curve).
    5. It has no critical extension that is not understood here (RFC 5280 §4.2).
    6. It chains to a configured authority now: signatures without SHA-1, validity, CA rules (RFC 5280 §6.1).
    """
    # 1
    read = _read(certificate)
    unread = read if isinstance(read, str) else ""
    _require(checks, not unread, "structure", "an X.509 certificate in DER that can be read", unread)
    if isinstance(read, str):
        raise AssertionError("a failed check raises Denied")
    leaf, extensions, spki = read
    _require(checks, spki == ek.spki, "certified key", "the endorsement key", "another key")
    # 2
    constraints = extension(leaf, x509.BasicConstraints)
    _require(checks, constraints is None or not constraints.ca, "no CA", "an end-entity certificate", "a CA")
    # 3
    purposes = extension(leaf, x509.ExtendedKeyUsage)
    is_ek = _is_tpm(leaf) if purposes is None else EK_USAGE in purposes
    _require(checks, is_ek, "extended key usage", f"tcg-kp-EKCertificate {EK_USAGE.dotted_string}", _describe(is_ek))
    # 4
    usage = extension(leaf, x509.KeyUsage)
    if isinstance(ek.key, rsa.RSAPublicKey):
        expected, fits = "keyEncipherment", usage is not None and usage.key_encipherment
    else:
        expected, fits = "keyAgreement", usage is not None and usage.key_agreement
    _require(checks, fits, "key usage", expected, _describe(fits))
    # 5
    unknown = [found.oid.dotted_string for found in extensions if found.critical and not _is_understood(found)]
    _require(checks, not unknown, "critical extensions", "none unknown", ", ".join(unknown) or "none unknown")
    # 6
    problem = _chain_problem(leaf, chain, anchors, now)
    _require(checks, problem is None, "certificate chain", "a chain to a configured authority", problem or "a chain")


def _read(certificate: bytes) -> tuple[x509.Certificate, x509.Extensions, bytes] | str:
    """Read certificate, extensions and SubjectPublicKeyInfo; what it is instead when there is no reading them."""
    try:
        leaf = x509.load_der_x509_certificate(certificate)
        spki = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        extensions = leaf.extensions
        check_readable(leaf)
    except X509_ERRORS as error:
        return f"{len(certificate)} bytes that cannot be read ({type(error).__name__})"
    return leaf, extensions, spki


def _is_tpm(leaf: x509.Certificate) -> bool:
    """Whether the alternative names tell a TPM's maker, model and version (TCG EK Credential Profile §3.1.2)."""
    names = extension(leaf, x509.SubjectAlternativeName)
    directory = names.get_values_for_type(x509.DirectoryName) if names is not None else []
    return {attribute.oid for name in directory for attribute in name} >= _TPM_ATTRIBUTES


def _is_understood(extension: x509.Extension[x509.ExtensionType]) -> bool:
    return isinstance(extension.value, _UNDERSTOOD)


def _describe(fits: bool) -> str:
    return "it" if fits else "another or none"


def _chain_problem(
    leaf: x509.Certificate, chain: tuple[bytes, ...], anchors: Sequence[x509.Certificate], now: datetime
) -> str | None:
    """Return why there is no chain, or None when there is one."""
    try:
        ChainVerifier(anchors, now, EK_USAGE).verify(leaf, chain)
    except ChainError as error:
        return str(error)
    return None


def _require(checks: Checks, passed: bool, name: str, expected: str, got: str) -> None:
    checks.require(
        passed,
        f"endorsement certificate: {name}",
        section=_SECTION,
        reason=Reason.ENDORSEMENT_CERTIFICATE_INVALID,
        expected=expected,
        got=expected if passed else got,
        remedy=_REMEDY,
    )
