"""The fingerprint of an endorsement key: the one definition that policies, annotations, records and the CLI share.

It is ``sha256:`` and the SHA-256, in lower-case hex, of the key's SubjectPublicKeyInfo in DER: the bytes that
``openssl pkey -pubin -outform DER`` writes, with an uncompressed point (elliptic curves) or NULL parameters (RSA). It
depends on the public key alone: not on the template's attributes, and not on a certificate.
Source: RFC 5280 §4.1.2.7; RFC 5480 §2; RFC 3279 §2.3.1; docs/providers/tpm.md, "The fingerprint".
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_providers.key_types import PublicKey
from nodeattest_providers.keys import is_roca

ENDORSEMENT_FINGERPRINT: Final = re.compile(r"sha256:(?!0{64})[0-9a-f]{64}", re.ASCII)
"""A fingerprint in its one spelling; an example's zeros are none."""
FINGERPRINT_FORM: Final = "sha256: and 64 lower-case hex digits"
"""What a refusal says is expected."""
_RSA_BITS: Final = 2048
_RSA_EXPONENT: Final = 65537


def endorsement_fingerprint(key: PublicKey) -> str:
    """Return ``sha256:<hex>`` of the key's SubjectPublicKeyInfo."""
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(spki).hexdigest()}"


def check_key_type(key: object) -> PublicKey:
    """Return a key that one of the accepted TCG templates can make; raises ValueError for any other."""
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size == _RSA_BITS:
        numbers = key.public_numbers()
        if numbers.e == _RSA_EXPONENT and not is_roca(numbers.n):
            return key
    raise ValueError("not RSA 2048 (exponent 65537, without CVE-2017-15361), ECC P-256 or P-384")
