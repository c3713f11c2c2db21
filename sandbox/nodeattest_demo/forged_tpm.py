"""A TPM that is none: an attestation key in software, and quotes that it signs itself.

It writes what a TPM would write, with a genuine TPM's public endorsement key, which is no secret. What it cannot do is
decrypt the challenge. Source: TCG TPM 2.0 Library, Part 2 §10.12.12 TPMS_ATTEST, §11.3.4 TPMT_SIGNATURE.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.key_templates import AK_TEMPLATE, EK_TEMPLATES, qualified_name
from nodeattest_providers.tpm.protocol import Challenge, FirstEvidence
from nodeattest_providers.tpm.structures import PcrSelection, digest_size, parse_public, sized

_POINT: Final = 2 * (2 + 32)
"""Bytes of a P-256 point at the end of a public area."""
_MAGIC: Final = bytes.fromhex("ff544347")
_QUOTE: Final = bytes.fromhex("8018")
_ECDSA_SHA256: Final = bytes.fromhex("0018000b")
_CLOCK_INFO: Final = (1_000_000).to_bytes(8, "big") + (1).to_bytes(4, "big") + bytes(4) + b"\x01"
_FIRMWARE: Final = bytes(8)


@dataclass(frozen=True, slots=True)
class ForgedTpm:
    """Software that plays a TPM with this endorsement key."""

    endorsement_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()), repr=False)

    @property
    def ak_public(self) -> bytes:
        """The public area that claims the key to be a TPM's."""
        return AK_TEMPLATE[:-_POINT] + _point(self.key.public_key())

    def first(self) -> FirstEvidence:
        """Claim both keys."""
        key = self.endorsement_key
        is_rsa = isinstance(key, rsa.RSAPublicKey)
        name = f"rsa{key.key_size}" if is_rsa else f"ecc-p{key.key_size}"
        template = next(one for one in EK_TEMPLATES if one.name == name)
        unique = sized(key.public_numbers().n.to_bytes(key.key_size // 8, "big")) if is_rsa else _point(key)
        return FirstEvidence(ek_public=template.prefix + unique, ak_public=self.ak_public)

    def registers(self, selection: PcrSelection) -> tuple[bytes, ...]:
        """Make up register values: those of a TPM that measured nothing yet."""
        return tuple(bytes(digest_size(selection.bank)) for _ in selection.pcrs)

    def quote(self, challenge: Challenge, extra_data: bytes) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        """Forge TPMS_ATTEST, its TPMT_SIGNATURE, and PCR values."""
        ak = parse_public(self.ak_public, what="forged key", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)
        values = self.registers(challenge.pcrs)
        attest = b"".join(
            (
                _MAGIC,
                _QUOTE,
                sized(qualified_name(ak)),
                sized(extra_data),
                _CLOCK_INFO,
                _FIRMWARE,
                challenge.pcrs.marshal(),
                sized(hashlib.sha256(b"".join(values)).digest()),
            )
        )
        r, s = decode_dss_signature(self.key.sign(attest, ec.ECDSA(hashes.SHA256())))
        return attest, _ECDSA_SHA256 + sized(r.to_bytes(32, "big")) + sized(s.to_bytes(32, "big")), values


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    numbers, octets = key.public_numbers(), (key.key_size + 7) // 8
    return sized(numbers.x.to_bytes(octets, "big")) + sized(numbers.y.to_bytes(octets, "big"))
