"""Who signs attested documents: a TLS server's certificate with the cloud's names, issued by a trusted authority.

Every certificate of the bundle is trusted, roots and intermediates alike. Embedded certificates help to build chains.
No address in a certificate is ever asked, for issuers or for revocation.
Source: RFC 5280 §6.1; Azure, "Instance Metadata Service" (certificates by cloud).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodeattest_providers.certificate_chain import (
    X509_ERRORS,
    chain_problem,
    check_readable,
    extension,
    parse_authorities,
)
from nodeattest_providers.identifiers import is_dns_name, printable

TRUST_BUNDLE: Final = "platforms.azure.trustBundle"
Authorities = tuple[x509.Certificate, ...]
_UNDERSTOOD: Final = (
    x509.BasicConstraints,
    x509.CertificatePolicies,
    x509.ExtendedKeyUsage,
    x509.KeyUsage,
    x509.SubjectAlternativeName,
)
"""Extensions of the signer that may be critical."""


def parse_bundle(pem: bytes) -> Authorities:
    """Read PEM certificates of authorities; what cannot be used is ``Denied``."""
    return parse_authorities(pem.decode(errors="replace"), TRUST_BUNDLE)


def foreign_name(signer: x509.Certificate, domain: str) -> str | None:
    """Name a name of the signer that is neither the cloud's own nor below it; None when there is none.

    1. It has DNS names, and nothing else is named besides.
    2. Each is the domain or below it, without a wildcard.
    3. So is its common name, where it has one.
    """
    try:
        check_readable(signer)
        subject = [str(each.value) for each in signer.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        names = list(extension(signer, x509.SubjectAlternativeName) or ())
    except X509_ERRORS:
        return "no names that can be read"
    if not names or not all(isinstance(each, x509.DNSName) for each in names):
        return "no DNS names only"
    for name in (*(str(each.value) for each in names), *subject):
        if not is_dns_name(name) or not (name == domain or name.endswith(f".{domain}")):
            return printable(name)
    return None


def signer_problem(
    signer: x509.Certificate, embedded: Sequence[x509.Certificate], authorities: Authorities, now: datetime
) -> str | None:
    """Say why a signer whose names can be read is no TLS server that an authority certified; None where it is one."""
    constraints, purposes = extension(signer, x509.BasicConstraints), extension(signer, x509.ExtendedKeyUsage)
    if constraints is not None and constraints.ca:
        return "a CA"
    if purposes is None or ExtendedKeyUsageOID.SERVER_AUTH not in purposes:
        return "a certificate that is not for TLS servers"
    unknown = [each.oid for each in signer.extensions if each.critical and not isinstance(each.value, _UNDERSTOOD)]
    if unknown:
        return f"a certificate with the critical extension {unknown[0].dotted_string}"
    between = [each.public_bytes(Encoding.DER) for each in embedded if each != signer]
    return chain_problem(signer, between, authorities, now, ExtendedKeyUsageOID.SERVER_AUTH)
