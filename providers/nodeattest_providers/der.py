"""DER opened one level at a time, so that its reader can count what is there.

cryptography hides that there were two lists of extensions, and Go merges both.
Source: X.690 §8 (encoding), §10-11 (what makes it distinguished).
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Final

Oid = tuple[int, ...]

_LONG_FORM: Final = 0x80
"""Bit of a length octet that says how many octets of length follow (X.690 §8.1.3.5)."""
_TAG_NUMBER: Final = 0x1F
"""Bits of the identifier octet (X.690 §8.1.2); all of them set: the number follows in more octets."""
_END_OF_CONTENTS: Final = (0x00, 0x20)
"""Reserved for BER's indefinite form (X.690 §8.1.5)."""


class NotDer(ValueError):
    """The bytes are not the DER of what was asked for."""


class Tag(IntEnum):
    """Identifier octets (X.690 §8.1.2) of what a PKCS#10 request or a signed document may hold."""

    BIT_STRING = 0x03
    OCTET_STRING = 0x04
    UTF8_STRING = 0x0C
    PRINTABLE_STRING = 0x13
    SEQUENCE = 0x30
    SET = 0x31
    DNS_NAME = 0x82
    """[2] IMPLICIT IA5String of GeneralName (RFC 5280 §4.2.1.6)."""
    IP_ADDRESS = 0x87
    """[7] IMPLICIT OCTET STRING of GeneralName."""
    ATTRIBUTES = 0xA0
    """[0] IMPLICIT SET OF Attribute (RFC 2986 §4.1)."""
    CONTENT = 0xA0
    """[0] EXPLICIT (RFC 5652 §3 and §5.2)."""


def tag_of(data: bytes) -> int:
    return data[0] if data else 0


def elements(data: bytes, kind: Tag, *, at_most: int) -> tuple[bytes, ...]:
    """Open a constructed element; returns the DER of each element inside, none of them opened."""
    start, end = _only(data, kind)
    found: list[bytes] = []
    while start < end:
        if len(found) == at_most:  # one element too many is as bad as a thousand, and is not read
            raise NotDer(f"more than {at_most} elements")
        _, stop = _span(data, start, end)
        found.append(data[start:stop])
        start = stop
    return tuple(found)


def octets(data: bytes, kind: Tag) -> bytes:
    start, end = _only(data, kind)
    return data[start:end]


def bit_string(data: bytes) -> bytes:
    """Read a BIT STRING of whole bytes; readers differ in what they make of others, even where the odd bits are 0."""
    content = octets(data, Tag.BIT_STRING)
    if content[:1] != b"\0":
        raise NotDer("bits that are not whole bytes")
    return content[1:]


def integer(data: bytes) -> int:
    from cryptography.hazmat import asn1  # 10 ms, and a node reads no value

    try:
        return asn1.decode_der(int, data)
    except ValueError:
        raise NotDer("bytes that are not DER of this type") from None


@lru_cache(maxsize=64)
def oid(data: bytes) -> Oid:
    """Read an OBJECT IDENTIFIER; all honest requests have the same few."""
    from cryptography.hazmat import asn1
    from cryptography.x509 import ObjectIdentifier

    try:
        return tuple(map(int, asn1.decode_der(ObjectIdentifier, data).dotted_string.split(".")))
    except ValueError:
        raise NotDer("bytes that are not DER of this type") from None


def _only(data: bytes, kind: Tag) -> tuple[int, int]:
    if tag_of(data) != kind:
        raise NotDer("bytes that are not DER of this type")
    start, end = _span(data, 0, len(data))
    if end != len(data):
        raise NotDer("trailing bytes or another encoding")
    return start, end


def _span(data: bytes, at: int, limit: int) -> tuple[int, int]:
    """Find the content of the element at ``at``, which ends at ``limit`` at the latest (X.690 §8.1)."""
    if data[at] & _TAG_NUMBER == _TAG_NUMBER or data[at] in _END_OF_CONTENTS:
        raise NotDer("an identifier that nothing here has")
    start = at + 2
    if start > limit:
        raise NotDer("an element cut short")
    size = data[at + 1]
    if size >= _LONG_FORM:  # §8.1.3.5
        start += size - _LONG_FORM
        digits = data[at + 2 : start]
        size = int.from_bytes(digits, "big")
        # §10.1: the fewest octets; none at all would be the indefinite form of BER.
        if start > limit or size < _LONG_FORM or digits[0] == 0:
            raise NotDer("another encoding of a length")
    if start + size > limit:
        raise NotDer("an element cut short")
    return start, start + size
