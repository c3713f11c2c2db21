"""CA pins: ``sha256:<hex>`` of a certificate's SubjectPublicKeyInfo, as kubeadm's ``--discovery-token-ca-cert-hash``.

``select_pinned`` returns only certificates that are pinned themselves, so other CAs in a bundle count for nothing.
kubeadm trusts the whole bundle if one certificate matches.
Source: kubeadm app/util/pubkeypin; RFC 7469 §2.4.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from nodeattest_providers import der
from nodeattest_providers.errors import Denied, Reason

_PIN: Final = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII | re.IGNORECASE)

_MOST_FIELDS: Final = 10
"""Fields of a TBSCertificate (RFC 5280 §4.1)."""
_VERSION: Final = 0xA0
"""The tag of the first field, [0] EXPLICIT. Version 1 certificates do not have it."""
_FIELDS_BEFORE_KEY: Final = 5
"""serialNumber, signature, issuer, validity, subject."""


@dataclass(frozen=True, slots=True)
class CaPin:
    """The SHA-256 of a public key."""

    digest: bytes

    def __str__(self) -> str:
        return f"sha256:{self.digest.hex()}"


def parse(text: str) -> CaPin:
    """Parse a pin. Prefix and digits may have either case, as in kubeadm. Raises ``Denied``."""
    found = _PIN.fullmatch(text)
    if found is None:
        raise Denied(
            Reason.CA_PIN_MALFORMED,
            expected="sha256: and 64 hexadecimal digits",
            got=f"{text[:80]!a} of {len(text)} characters",
            remedy="take it from: nodeattest cluster-info show, or nodeattest token create --print-join-command",
        )
    return CaPin(bytes.fromhex(found[1]))


def require_pins(pins: frozenset[CaPin] | None) -> None:
    """Raise ``Denied`` for an empty set. None means that the caller chose to do without pins."""
    if pins is not None and not pins:
        raise Denied(
            Reason.CA_PIN_MALFORMED,
            expected="at least one pin, or an explicit choice to skip CA verification",
            got="none",
            remedy="take the pin from: nodeattest cluster-info show",
        )


def pin_of(certificate: x509.Certificate) -> CaPin:
    """Compute a certificate's pin over the key as encoded, regardless of the key's type."""
    fields = der.elements(certificate.tbs_certificate_bytes, der.Tag.SEQUENCE, at_most=_MOST_FIELDS)
    spki = fields[_FIELDS_BEFORE_KEY + (der.tag_of(fields[0]) == _VERSION)]
    return CaPin(hashlib.sha256(spki).digest())


def select_pinned(bundle: Sequence[x509.Certificate], pins: Iterable[CaPin]) -> tuple[x509.Certificate, ...]:
    """Return the pinned certificates of a bundle. Raises ``Denied`` if there is none."""
    wanted = frozenset(pins)
    kept = tuple(certificate for certificate in bundle if pin_of(certificate) in wanted)
    if not kept:
        raise Denied(
            Reason.CA_NOT_PINNED,
            expected=f"a CA with the pin {' or '.join(sorted(map(str, wanted))) or 'none'}",
            got=", ".join(sorted({str(pin_of(certificate)) for certificate in bundle})) or "no certificate",
            remedy="the server is not the cluster that was pinned, or its CA was replaced: compare the pins on "
            "the control plane",
        )
    return kept
