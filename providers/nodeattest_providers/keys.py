"""Keys: the kinds that requests may have, and the fingerprint of an endorsement key.

Requests are checked before the first costly operation on the key.
Source: RFC 5480 §2, RFC 3279 §2.3.1, RFC 5758 §3.2, RFC 4055 §5; NIST SP 800-131A r2 §5; CVE-2017-15361; RFC 5280
§4.1.2.7; docs/providers/tpm.md, "The fingerprint".
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_providers import der
from nodeattest_providers.der import Tag
from nodeattest_providers.errors import Denied, Reason

PrivateKey = EllipticCurvePrivateKey | RSAPrivateKey
PublicKey = EllipticCurvePublicKey | RSAPublicKey


_EC_KEYS: Final = {  # SubjectPublicKeyInfo up to and with the 0x04 of the uncompressed point: its length in bytes
    bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004"): 91,  # P-256
    bytes.fromhex("3076301006072a8648ce3d020106052b8104002203620004"): 120,  # P-384
}
_RSA_ALGORITHM: Final = bytes.fromhex("300d06092a864886f70d0101010500")  # rsaEncryption, NULL
_RSA_BITS: Final = range(2048, 4096 + 1)
_RSA_EXPONENT: Final = 65537

_ECDSA_SIGNATURES: Final = {bytes.fromhex("300a06082a8648ce3d04030" + last) for last in "234"}  # SHA-256, -384, -512
_RSA_SIGNATURES: Final = {bytes.fromhex(f"300d06092a864886f70d01010{last}0500") for last in "bcd"}  # the same hashes

_REMEDY: Final = "make an ECDSA P-256 key and sign the request with SHA-256"


def check_public_key(spki: bytes) -> None:
    """Accept the kinds of SubjectPublicKeyInfo on a closed list only; ``Denied`` in time independent of its size."""
    if any(spki.startswith(prefix) and len(spki) == size for prefix, size in _EC_KEYS.items()):
        return
    modulus, exponent = _rsa_numbers(spki)
    if modulus.bit_length() not in _RSA_BITS or modulus < 0:
        raise _not_allowed(f"an RSA modulus of {_RSA_BITS[0]} to {_RSA_BITS[-1]} bits", f"{modulus.bit_length()} bits")
    if exponent != _RSA_EXPONENT:
        raise _not_allowed(f"the RSA exponent {_RSA_EXPONENT}", "another exponent")
    if modulus % 2 == 0:
        raise _not_allowed("an odd RSA modulus", "an even one")
    if is_roca(modulus):
        raise _not_allowed("an RSA modulus of two random primes", "the fingerprint of CVE-2017-15361")


def check_signature_algorithm(spki: bytes, algorithm: bytes) -> None:
    """Refuse every AlgorithmIdentifier but ECDSA or PKCS#1 v1.5 with SHA-2, of the key's own kind."""
    is_ec = any(spki.startswith(prefix) for prefix in _EC_KEYS)
    if algorithm not in (_ECDSA_SIGNATURES if is_ec else _RSA_SIGNATURES):
        raise Denied(
            Reason.CSR_SIGNATURE_INVALID,
            expected="ECDSA by an EC key or RSA PKCS#1 v1.5 by an RSA key, with SHA-256, SHA-384 or SHA-512",
            got="another signature algorithm",
            remedy=_REMEDY,
        )


def is_roca(modulus: int) -> bool:
    """Whether a modulus bears the fingerprint of Infineon's weak primes, which are powers of 65537 modulo small primes.

    A random modulus does so with a chance below 2^-27 (Nemec et al., CCS 2017, §2.3 and its detection tool).
    """
    return all(modulus % prime in residues for prime, residues in _roca_residues())


@cache
def _roca_residues() -> tuple[tuple[int, frozenset[int]], ...]:
    primes = [number for number in range(3, 168) if all(number % divisor for divisor in range(2, number))]
    return tuple((prime, frozenset(pow(_RSA_EXPONENT, power, prime) for power in range(prime))) for prime in primes)


def _rsa_numbers(spki: bytes) -> tuple[int, int]:
    try:
        algorithm, key = der.elements(spki, Tag.SEQUENCE, at_most=2)
        modulus, exponent = der.elements(der.bit_string(key), Tag.SEQUENCE, at_most=2)
        if algorithm == _RSA_ALGORITHM:
            return der.integer(modulus), der.integer(exponent)
    except ValueError:  # NotDer, or another number of elements
        pass
    raise _not_allowed("an ECDSA P-256, ECDSA P-384 or RSA key", "another kind of key")


def _not_allowed(expected: str, got: str) -> Denied:
    return Denied(Reason.KEY_NOT_ALLOWED, expected=expected, got=got, remedy=_REMEDY)


ENDORSEMENT_FINGERPRINT: Final = re.compile(r"sha256:(?!0{64})[0-9a-f]{64}", re.ASCII)
"""A fingerprint in its one spelling; an example's zeros are none."""
FINGERPRINT_FORM: Final = "sha256: and 64 lower-case hex digits"
"""What a refusal says is expected."""
_FINGERPRINT_RSA_BITS: Final = 2048


def endorsement_fingerprint(key: PublicKey) -> str:
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(spki).hexdigest()}"


def check_key_type(key: object) -> PublicKey:
    """Return a key that one of the accepted TCG templates can make; raises ValueError for any other."""
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size == _FINGERPRINT_RSA_BITS:
        numbers = key.public_numbers()
        if numbers.e == _RSA_EXPONENT and not is_roca(numbers.n):
            return key
    raise ValueError("not RSA 2048 (exponent 65537, without CVE-2017-15361), ECC P-256 or P-384")
