"""Endorsement key certificates: a manufacturer certifies that this key is in a TPM.

Promises: returns only when the certificate is for this very key, is an endorsement certificate, and chains to a
configured authority at the given time. Leaves to others: whose TPM it is; a chain alone never says that
(``endorsement_key``). Revocation is not checked: manufacturers publish lists that hardly any machine room can reach;
the binding of key to machine, which is always demanded besides, is what an operator withdraws. A certificate that
cryptography cannot read (RSAES-OAEP key, SETs out of order) does not count; its key can still be registered.
Source: TCG EK Credential Profile 2.5, §3.2 "X.509 ASN.1 Definitions"; RFC 5280 §6.1, §4.2.1;
docs/tpm-protocol.md §3, step 4.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store, VerificationError

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.public_area import PublicArea
from nodeattest_providers.x509_errors import X509_ERRORS

__all__ = ["check_certificate"]

_T = TypeVar("_T", bound=x509.ExtensionType)

_SECTION: Final = "TCG EK Credential Profile §3.2"
_REMEDY: Final = "use a TPM whose endorsement certificate is sound, or register its endorsement key"
_EK_USAGE: Final = x509.ObjectIdentifier("2.23.133.8.1")
"""tcg-kp-EKCertificate."""
_UNDERSTOOD: Final = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.SubjectAlternativeName)
"""Extensions that may be critical: three are checked here, the directory names of the fourth identify a TPM model."""


def check_certificate(
    checks: Checks, ek: PublicArea, certificate: bytes, chain: tuple[bytes, ...], *, anchors: Store, now: datetime
) -> None:
    """Check an endorsement certificate (DER) with its intermediates.

    1. It can be read, and certifies exactly this key.
    2. It is no CA certificate (RFC 5280 §4.2.1.9).
    3. Its extended key usage holds tcg-kp-EKCertificate: other leaves of that CA are no TPMs.
    4. Its key usage is keyEncipherment (RSA) or keyAgreement (elliptic curve).
    5. It has no critical extension that is not understood here (RFC 5280 §4.2).
    6. It chains to a configured authority now: signatures without SHA-1, validity, CA rules (RFC 5280 §6.1).
    """
    # 1
    read = _read(certificate)
    _require(checks, read is not None, "structure", "an X.509 certificate in DER", f"{len(certificate)} other bytes")
    if read is None:
        raise AssertionError("a failed check raises Denied")
    leaf, extensions, spki = read
    _require(checks, spki == ek.spki, "certified key", "the endorsement key", "another key")
    # 2
    constraints = _get(extensions, x509.BasicConstraints)
    _require(checks, constraints is None or not constraints.ca, "no CA", "an end-entity certificate", "a CA")
    # 3
    purposes = _get(extensions, x509.ExtendedKeyUsage)
    is_ek = purposes is not None and _EK_USAGE in purposes
    _require(checks, is_ek, "extended key usage", f"tcg-kp-EKCertificate {_EK_USAGE.dotted_string}", _describe(is_ek))
    # 4
    usage = _get(extensions, x509.KeyUsage)
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


def _read(certificate: bytes) -> tuple[x509.Certificate, x509.Extensions, bytes] | None:
    """Read certificate, extensions and SubjectPublicKeyInfo; None when there is no reading them."""
    try:
        leaf = x509.load_der_x509_certificate(certificate)
        spki = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        extensions = leaf.extensions
    except X509_ERRORS:
        return None
    return leaf, extensions, spki


def _get(extensions: x509.Extensions, kind: type[_T]) -> _T | None:
    for extension in extensions:
        if isinstance(extension.value, kind):
            return extension.value
    return None


def _is_understood(extension: x509.Extension[x509.ExtensionType]) -> bool:
    return isinstance(extension.value, _UNDERSTOOD)


def _describe(fits: bool) -> str:
    return "it" if fits else "another or none"


def _chain_problem(leaf: x509.Certificate, chain: tuple[bytes, ...], anchors: Store, now: datetime) -> str | None:
    """Return why there is no chain, in cryptography's wording, or None when there is one."""
    # The default policies are for the web: they demand a DNS name and the client usage, and do not know the TPM's.
    leaf_policy = ExtensionPolicy.permit_all()  # steps 2 to 5 check the leaf
    authority_policy = ExtensionPolicy.webpki_defaults_ca()
    verifier = (
        PolicyBuilder()
        .store(anchors)
        .time(now)
        .extension_policies(ca_policy=authority_policy, ee_policy=leaf_policy)
        .build_client_verifier()
    )
    try:
        verifier.verify(leaf, [x509.load_der_x509_certificate(item) for item in chain])
    except VerificationError as error:
        return str(error)
    except X509_ERRORS:
        return "an intermediate that cannot be read"
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
