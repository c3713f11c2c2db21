"""TPMT_PUBLIC: the public area of a TPM key, read strictly.

Promises: a value whose key is usable (modulus of the stated size and odd, point on its curve) and whose Name is
recomputed from the very bytes, or ``Denied``. Only shapes that an endorsement or attestation key can have are read.
Source: TCG TPM 2.0 Library, Part 2 §12.2.4 TPMT_PUBLIC, §12.2.3.5 TPMS_RSA_PARMS, §12.2.3.6 TPMS_ECC_PARMS; Part 1
§16 "Names".
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_providers.endorsement_fingerprint import endorsement_fingerprint
from nodeattest_providers.errors import Reason
from nodeattest_providers.key_types import PublicKey
from nodeattest_providers.keys import is_roca
from nodeattest_providers.tpm.structures import Alg, Curve, Reader, digest

_MAX_POLICY: Final = 64
"""Bytes of the largest digest, SHA-512."""
_RSA_BITS: Final = (2048, 3072, 4096)
_DEFAULT_EXPONENT: Final = 65537
"""The exponent that 0 means (Part 2 §12.2.3.5); no other is accepted."""
_CURVES: Final = {Curve.P256: ec.SECP256R1, Curve.P384: ec.SECP384R1}


@dataclass(frozen=True, slots=True)
class PublicArea:
    """A parsed TPMT_PUBLIC."""

    raw: bytes = field(repr=False)
    name_alg: Alg
    attributes: int
    policy: bytes = field(repr=False)
    symmetric: tuple[Alg, int, Alg] | None
    """Algorithm, key bits and mode, or None."""
    scheme: tuple[Alg, Alg] | None
    """Signature scheme and its hash, or None."""
    key: PublicKey = field(repr=False)
    spki: bytes = field(repr=False)
    """SubjectPublicKeyInfo in DER."""

    @property
    def name(self) -> bytes:
        """The key's Name: nameAlg, then the digest of the public area (Part 1 §16)."""
        return self.name_alg.to_bytes(2, "big") + digest(self.name_alg, self.raw)

    @property
    def spki_sha256(self) -> bytes:
        """SHA-256 of the SubjectPublicKeyInfo."""
        return hashlib.sha256(self.spki).digest()

    @property
    def fingerprint(self) -> str:
        """The endorsement key's fingerprint: how operators register it."""
        return endorsement_fingerprint(self.key)


def parse_public(raw: bytes, *, what: str, reason: Reason) -> PublicArea:
    """Parse a TPMT_PUBLIC (without the TPM2B length); anything else is ``Denied`` with the given reason."""
    reader = Reader(raw, what=what, reason=reason)
    kind = reader.alg("type", Alg.RSA, Alg.ECC)
    name_alg = reader.alg("nameAlg", Alg.SHA256, Alg.SHA384, Alg.SHA512)
    attributes = reader.number(4)
    policy = reader.sized("authPolicy", _MAX_POLICY)
    symmetric = _symmetric(reader)
    scheme = _scheme(reader, Alg.RSASSA if kind is Alg.RSA else Alg.ECDSA)
    key = _rsa_key(reader) if kind is Alg.RSA else _ecc_key(reader)
    reader.end()
    return PublicArea(
        raw=raw,
        name_alg=name_alg,
        attributes=attributes,
        policy=policy,
        symmetric=symmetric,
        scheme=scheme,
        key=key,
        spki=key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    )


def _symmetric(reader: Reader) -> tuple[Alg, int, Alg] | None:
    """Read TPMT_SYM_DEF_OBJECT: AES in CFB mode, or none."""
    if reader.alg("symmetric", Alg.NULL, Alg.AES) is Alg.NULL:
        return None
    bits = reader.number(2)
    if bits not in (128, 192, 256):
        raise reader.wrong("AES key of 128, 192 or 256 bits", str(bits))
    return Alg.AES, bits, reader.alg("mode", Alg.CFB)


def _scheme(reader: Reader, signing: Alg) -> tuple[Alg, Alg] | None:
    """Read TPMT_RSA_SCHEME or TPMT_ECC_SCHEME: the plain signature scheme of the key type, or none."""
    if reader.alg("scheme", Alg.NULL, signing) is Alg.NULL:
        return None
    return signing, reader.alg("scheme hash", Alg.SHA256, Alg.SHA384, Alg.SHA512)


def _rsa_key(reader: Reader) -> rsa.RSAPublicKey:
    bits = reader.number(2)
    if bits not in _RSA_BITS:
        raise reader.wrong(f"RSA key of {_RSA_BITS} bits", str(bits))
    exponent = reader.number(4)
    if exponent not in (0, _DEFAULT_EXPONENT):
        raise reader.wrong(f"RSA exponent 0 or {_DEFAULT_EXPONENT}", str(exponent))
    modulus = int.from_bytes(reader.sized("modulus", bits // 8), "big")
    if modulus.bit_length() != bits or modulus % 2 == 0:
        raise reader.wrong(f"an odd modulus of {bits} bits", f"{modulus.bit_length()} bits")
    if is_roca(modulus):  # made by Infineon's TPMs of 2012 to 2017: anybody can compute the private key
        raise reader.wrong("an RSA key without the weakness CVE-2017-15361", "one with it")
    try:
        return rsa.RSAPublicNumbers(_DEFAULT_EXPONENT, modulus).public_key()
    except ValueError:
        raise reader.wrong("a usable RSA key", "an unusable modulus") from None


def _ecc_key(reader: Reader) -> ec.EllipticCurvePublicKey:
    curve = reader.curve()
    reader.alg("kdf", Alg.NULL)
    x = _coordinate(reader, curve)
    y = _coordinate(reader, curve)
    try:
        return ec.EllipticCurvePublicNumbers(x, y, _CURVES[curve]()).public_key()
    except ValueError:  # off the curve, or a coordinate not below the prime
        raise reader.wrong(f"a point on {curve.name}", "a point off the curve") from None


def _coordinate(reader: Reader, curve: Curve) -> int:
    octets = reader.sized("coordinate", curve.octets)
    if len(octets) != curve.octets:  # Part 1 Annex C.8: TPMs since revision 1.38 pad coordinates to full size
        raise reader.wrong(f"a coordinate of {curve.octets} bytes", f"{len(octets)} bytes")
    return int.from_bytes(octets, "big")
