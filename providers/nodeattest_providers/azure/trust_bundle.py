"""Who signs attested documents: a chain from the signer to an authority that the operator trusts for it.

Self-signed certificates of the bundle are trusted, the others help to build chains. Embedded certificates help only as
far as the bundle issued them. No address in a certificate is ever asked, for issuers or for revocation.
Source: RFC 5280 §6.1; Azure, "Instance Metadata Service" (certificates by cloud).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from nodeattest_providers.certificate_chain import X509_ERRORS, describe, parse_authorities
from nodeattest_providers.config_fields import invalid
from nodeattest_providers.identifiers import is_dns_name, printable

TRUST_BUNDLE: Final = "platforms.azure.trustBundle"
_MAX_PROBLEM: Final = 200
"""Characters of what the library says of a chain."""


@dataclass(frozen=True, slots=True)
class Authorities:
    """The certificates of a bundle."""

    roots: tuple[x509.Certificate, ...] = field(repr=False)
    intermediates: tuple[x509.Certificate, ...] = field(repr=False)

    @property
    def store(self) -> Store:
        """What a chain has to end at."""
        return Store(list(self.roots))


def parse_bundle(pem: bytes) -> Authorities:
    """Read PEM certificates of authorities; what cannot be used is ``Denied``."""
    certificates = parse_authorities(pem.decode(errors="replace"), TRUST_BUNDLE)
    self_signed = [_issued(certificate, certificate) for certificate in certificates]
    if not any(self_signed):
        raise invalid(TRUST_BUNDLE, "at least one root", "none")
    found = list(zip(certificates, self_signed, strict=True))
    return Authorities(
        roots=tuple(certificate for certificate, is_root in found if is_root),
        intermediates=tuple(certificate for certificate, is_root in found if not is_root),
    )


def foreign_name(signer: x509.Certificate, domain: str) -> str | None:
    """Name a name of the signer that is neither the cloud's own nor below it; None when there is none.

    1. It has DNS names, and nothing else is named besides.
    2. Each is the domain or below it, without a wildcard.
    3. So is its common name, where it has one.
    """
    try:
        subject = [str(each.value) for each in signer.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        names = list(signer.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, *X509_ERRORS):
        return "no names that can be read"
    if not names or not all(isinstance(each, x509.DNSName) for each in names):
        return "no DNS names only"
    for name in (*(str(each.value) for each in names), *subject):
        if not is_dns_name(name) or not (name == domain or name.endswith(f".{domain}")):
            return printable(name)
    return None


def chain_problem(
    signer: x509.Certificate, embedded: Iterable[x509.Certificate], authorities: Authorities, now: datetime
) -> str | None:
    """Say why there is no chain from the signer to a root, and who issued it; None when there is one.

    Checked as the certificate of a TLS server, which it is: validity, server usage, signatures without SHA-1, CA rules.
    """
    try:
        name = signer.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        reference = x509.DNSName(name.get_values_for_type(x509.DNSName)[0])
        verifier = PolicyBuilder().store(authorities.store).time(now).build_server_verifier(reference)
        verifier.verify(signer, [*authorities.intermediates, *_issued_by_trusted(embedded, authorities)])
    except (VerificationError, x509.ExtensionNotFound, IndexError) as error:
        return f"a signer {describe(signer)}: {printable(str(error), _MAX_PROBLEM)}"
    except X509_ERRORS:
        return "a certificate that cannot be read"
    return None


def _issued_by_trusted(embedded: Iterable[x509.Certificate], authorities: Authorities) -> list[x509.Certificate]:
    """Keep what the authorities issued, directly or through what was kept; each round keeps one more."""
    left = list(embedded)
    kept: list[x509.Certificate] = []
    issuers = [*authorities.roots, *authorities.intermediates]
    while True:
        found = next((one for one in left if any(_issued(one, issuer) for issuer in (*issuers, *kept))), None)
        if found is None:
            return kept
        left.remove(found)
        kept.append(found)


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    if certificate.issuer != issuer.subject:
        return False
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *X509_ERRORS):
        return False
    return True
