"""TPMT_SIGNATURE, read strictly, and its verification by an attestation key.

Promises: a ``Signature`` or ``Denied``; valid only under the key's own scheme and hash, never one that the signature
chooses.
Source: TCG TPM 2.0 Library, Part 2 §11.3.4 TPMT_SIGNATURE; FIPS 186-5 §6; RFC 8017 §8.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.public_area import PublicArea
from nodeattest_providers.tpm.structures import Alg, Reader

_MAX_ECC: Final = 64
"""Bytes of R or S."""
_MAX_RSA: Final = 512
"""Bytes of a 4096-bit signature."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A TPMT_SIGNATURE; ``value`` is DER for ECDSA, as ``cryptography`` takes it."""

    scheme: Alg
    hash_alg: Alg
    value: bytes = field(repr=False)


def parse_signature(raw: bytes) -> Signature:
    """Parse TPMT_SIGNATURE: ECDSA or RSASSA, anything else is ``Denied``."""
    reader = Reader(raw, what="quote signature", reason=Reason.QUOTE_MALFORMED)
    scheme = reader.alg("scheme", Alg.ECDSA, Alg.RSASSA)
    hash_alg = reader.alg("hash", Alg.SHA256, Alg.SHA384, Alg.SHA512)
    if scheme is Alg.RSASSA:
        value = reader.sized("signature", _MAX_RSA)
    else:
        r = int.from_bytes(reader.sized("signatureR", _MAX_ECC), "big")
        s = int.from_bytes(reader.sized("signatureS", _MAX_ECC), "big")
        value = encode_dss_signature(r, s)
    reader.end()
    return Signature(scheme, hash_alg, value)


def signature_is_valid(ak: PublicArea, signature: Signature, message: bytes) -> bool:
    """Return whether the attestation key signed ``message`` with exactly its own scheme, RSASSA or ECDSA on SHA-256."""
    if (signature.scheme, signature.hash_alg) != ak.scheme or signature.hash_alg is not Alg.SHA256:
        return False
    try:
        match ak.key:
            case rsa.RSAPublicKey():
                ak.key.verify(signature.value, message, padding.PKCS1v15(), hashes.SHA256())
            case ec.EllipticCurvePublicKey():
                ak.key.verify(signature.value, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
