"""TPM wire structures: the algorithm numbers we use, and a reader that no byte string can surprise.

Promises: every parse gives a value or ``Denied``; lengths are exact, nothing may follow, nothing is skipped.
Source: TCG TPM 2.0 Library, Part 2 "Structures": §6.3 TPM_ALG_ID, §6.4 TPM_ECC_CURVE, §10.6.2 TPMS_PCR_SELECTION.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from nodeattest_providers.errors import Denied, Reason

_REMEDY: Final = "send the bytes that the TPM gave, unchanged"
_MAX_SELECT_OCTETS: Final = 4
"""Bytes of a PCR bit map; the PC Client profile has 24 PCRs, hence 3."""
_MIN_SELECT_OCTETS: Final = 3
"""PCR_SELECT_MIN of the PC Client profile: shorter maps come from no TPM."""
MAX_PCR: Final = 23
"""The last PCR of the PC Client profile."""
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
        """Bytes of one coordinate."""
        return 32 if self is Curve.P256 else 48


_HASHES: Final = {Alg.SHA256: "sha256", Alg.SHA384: "sha384", Alg.SHA512: "sha512"}
BANK_ALGORITHMS: Final = {name: alg for alg, name in _HASHES.items()}
"""PCR banks by name; SHA-1 is none of them: nobody may choose it."""


def digest(alg: Alg, data: bytes) -> bytes:
    """Hash with a TPM hash algorithm; SHA-1 and unknown ones are a ``KeyError``, to be refused before."""
    return hashlib.new(_HASHES[alg], data).digest()


def digest_size(alg: Alg) -> int:
    """Return the size of a digest in bytes."""
    return hashlib.new(_HASHES[alg]).digest_size


def sized(data: bytes) -> bytes:
    """Marshal a TPM2B: two bytes of length, then the bytes."""
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
        """Return how many bytes follow."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """Read exactly ``count`` bytes."""
        end = self._at + count
        if end > len(self._data):
            raise self.wrong(f"{count} more bytes at offset {self._at}", f"{len(self._data) - self._at}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, octets: int) -> int:
        """Read an unsigned integer of ``octets`` bytes."""
        return int.from_bytes(self.take(octets), "big")

    def little(self, octets: int) -> int:
        """Read an unsigned little-endian integer, as firmware writes them."""
        return int.from_bytes(self.take(octets), "little")

    def alg(self, field: str, *allowed: Alg) -> Alg:
        """Read an algorithm that must be one of ``allowed``."""
        value = self.number(2)
        for alg in allowed:
            if value == alg:
                return alg
        raise self.wrong(f"{field} {' or '.join(alg.name for alg in allowed)}", f"0x{value:04x}")

    def curve(self) -> Curve:
        """Read an elliptic curve that we accept."""
        value = self.number(2)
        for curve in Curve:
            if value == curve:
                return curve
        raise self.wrong("curve NIST P-256 or P-384", f"0x{value:04x}")

    def sized(self, field: str, maximum: int) -> bytes:
        """Read a TPM2B of at most ``maximum`` bytes."""
        size = self.number(2)
        if size > maximum:
            raise self.wrong(f"{field} of at most {maximum} bytes", f"{size} bytes")
        return self.take(size)

    def end(self) -> None:
        """Require that nothing follows."""
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
        """Read TPML_PCR_SELECTION."""
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
