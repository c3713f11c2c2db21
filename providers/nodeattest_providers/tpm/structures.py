"""TPM structures, read strictly: lengths are exact, nothing may follow, nothing is skipped.

Source: TCG TPM 2.0 Library, Part 2 §6.3 TPM_ALG_ID, §6.4 TPM_ECC_CURVE, §10.6.2 TPMS_PCR_SELECTION, §12.2.3,
§12.2.4 TPMT_PUBLIC; Part 1 §16 "Names".
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.keys import PublicKey, endorsement_fingerprint, is_roca

_REMEDY: Final = "send the bytes that the TPM gave, unchanged"
_MAX_SELECT_OCTETS: Final = 4
"""Bytes of a PCR bit map; the PC Client profile has 24 PCRs, hence 3."""
_MIN_SELECT_OCTETS: Final = 3
"""PCR_SELECT_MIN of the PC Client profile: shorter maps come from no TPM."""
MAX_PCR: Final = 23
_MAX_BANKS: Final = 16
"""HASH_COUNT is at most this in every implementation; a bound on work, not a rule."""


class Alg(IntEnum):
    """TPM_ALG_ID values that can occur in the structures we accept (Part 2 §6.3)."""

    RSA = 0x0001
    SHA1 = 0x0004
    AES = 0x0006
    SHA256 = 0x000B
    SHA384 = 0x000C
    SHA512 = 0x000D
    NULL = 0x0010
    RSASSA = 0x0014
    ECDSA = 0x0018
    ECC = 0x0023
    CFB = 0x0043


class Curve(IntEnum):
    """TPM_ECC_CURVE values that we accept (Part 2 §6.4)."""

    P256 = 0x0003
    P384 = 0x0004

    @property
    def octets(self) -> int:
        return 32 if self is Curve.P256 else 48


_HASHES: Final = {Alg.SHA256: "sha256", Alg.SHA384: "sha384", Alg.SHA512: "sha512"}
BANK_ALGORITHMS: Final = {name: alg for alg, name in _HASHES.items()}
"""PCR banks by name. SHA-1 is left out on purpose."""


def digest(alg: Alg, data: bytes) -> bytes:
    """Hash with a TPM hash algorithm; SHA-1 and unknown ones are a ``KeyError``, to be refused before."""
    return hashlib.new(_HASHES[alg], data).digest()


def digest_size(alg: Alg) -> int:
    return hashlib.new(_HASHES[alg]).digest_size


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


class Reader:
    """Reads big-endian TPM fields from one byte string; every defect is ``Denied`` with the structure's reason."""

    __slots__ = ("_at", "_data", "_reason", "_remedy", "_what")

    def __init__(self, data: bytes, *, what: str, reason: Reason, remedy: str = _REMEDY) -> None:
        self._data = data
        self._at = 0
        self._what = what
        self._reason = reason
        self._remedy = remedy

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise self.wrong(f"{count} more bytes at offset {self._at}", f"{len(self._data) - self._at}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, octets: int) -> int:
        return int.from_bytes(self.take(octets), "big")

    def little(self, octets: int) -> int:
        """Read an unsigned little-endian integer, as firmware writes them."""
        return int.from_bytes(self.take(octets), "little")

    def alg(self, field: str, *allowed: Alg) -> Alg:
        value = self.number(2)
        for alg in allowed:
            if value == alg:
                return alg
        raise self.wrong(f"{field} {' or '.join(alg.name for alg in allowed)}", f"0x{value:04x}")

    def curve(self) -> Curve:
        value = self.number(2)
        for curve in Curve:
            if value == curve:
                return curve
        raise self.wrong("curve NIST P-256 or P-384", f"0x{value:04x}")

    def sized(self, field: str, maximum: int) -> bytes:
        size = self.number(2)
        if size > maximum:
            raise self.wrong(f"{field} of at most {maximum} bytes", f"{size} bytes")
        return self.take(size)

    def end(self) -> None:
        if self._at != len(self._data):
            raise self.wrong("no trailing bytes", f"{len(self._data) - self._at} bytes")

    def wrong(self, expected: str, got: str) -> Denied:
        """Make the refusal; ``got`` names numbers and lengths only, never content."""
        return Denied(self._reason, expected=f"{self._what}: {expected}", got=got, remedy=self._remedy)


@dataclass(frozen=True, slots=True)
class PcrSelection:
    """PCRs of one bank, in ascending order: the order in which a quote digests them."""

    bank: Alg
    pcrs: tuple[int, ...]

    def marshal(self) -> bytes:
        """Write TPML_PCR_SELECTION with this one bank, as a node passes it to the TPM."""
        bits = sum(1 << pcr for pcr in self.pcrs)
        select = bits.to_bytes(_MIN_SELECT_OCTETS, "little")
        return b"".join(((1).to_bytes(4, "big"), self.bank.to_bytes(2, "big"), len(select).to_bytes(1, "big"), select))

    @classmethod
    def read(cls, reader: Reader) -> tuple[PcrSelection, ...]:
        banks = reader.number(4)
        if banks > _MAX_BANKS:
            raise reader.wrong(f"at most {_MAX_BANKS} PCR banks", str(banks))
        return tuple(cls._read_one(reader) for _ in range(banks))

    @classmethod
    def _read_one(cls, reader: Reader) -> PcrSelection:
        bank = reader.alg("PCR bank", Alg.SHA1, *_HASHES)
        octets = reader.number(1)
        if not _MIN_SELECT_OCTETS <= octets <= _MAX_SELECT_OCTETS:
            raise reader.wrong(f"a PCR map of {_MIN_SELECT_OCTETS} to {_MAX_SELECT_OCTETS} bytes", str(octets))
        bits = int.from_bytes(reader.take(octets), "little")
        return cls(bank, tuple(pcr for pcr in range(8 * octets) if bits >> pcr & 1))


_MAX_POLICY: Final = 64
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
    key: PublicKey = field(repr=False)
    spki: bytes = field(repr=False)

    @property
    def name(self) -> bytes:
        """The key's Name: nameAlg, then the digest of the public area (Part 1 §16)."""
        return self.name_alg.to_bytes(2, "big") + digest(self.name_alg, self.raw)

    @property
    def spki_sha256(self) -> bytes:
        return hashlib.sha256(self.spki).digest()

    @property
    def fingerprint(self) -> str:
        return endorsement_fingerprint(self.key)


def parse_public(raw: bytes, *, what: str, reason: Reason) -> PublicArea:
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
    return rsa.RSAPublicNumbers(_DEFAULT_EXPONENT, modulus).public_key()


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
