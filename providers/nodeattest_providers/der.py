"""DER opened one level at a time, so that whoever reads it can count what stands there.

cryptography answers "the extensions" and hides that there were two lists of them; Go merges both. Promises: bytes in,
plain values out, or ``NotDer``; each element is encoded again and compared, and nothing may follow it, so BER and
trailing bytes do not pass. The only module that touches pyasn1, and that gives it types.
Leaves to others: what may stand where (``pkcs10``), signatures and curves (cryptography).
Source: X.690 §8 (encoding), §10-11 (what makes it distinguished).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, cast

from pyasn1.codec.der import decoder, encoder
from pyasn1.type import tag, univ

__all__ = ["NotDer", "Oid", "Tag", "bit_string", "boolean", "elements", "integer", "octets", "oid", "tag_of"]

Oid = tuple[int, ...]
"""The arcs of an object identifier."""


class NotDer(ValueError):  # noqa: N818 - the answer to "is it DER of this type?"
    """The bytes are not the DER of what was asked for."""


class Tag(IntEnum):
    """Identifier octets (X.690 §8.1.2) of what a PKCS#10 request may hold."""

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


def tag_of(data: bytes) -> int:
    """Tell the identifier octet; 0 for no bytes."""
    return data[0] if data else 0


def elements(data: bytes, kind: Tag) -> tuple[bytes, ...]:
    """Open a constructed element; returns the DER of each element inside, none of them opened."""
    spec = univ.SequenceOf(componentType=univ.Any(), tagSet=_tag_set(kind))
    return tuple(bytes(element) for element in _decode(data, spec))


def octets(data: bytes, kind: Tag) -> bytes:
    """Open a primitive element; returns its content."""
    return bytes(_decode(data, univ.OctetString(tagSet=_tag_set(kind))))


def bit_string(data: bytes) -> bytes:
    """Read a BIT STRING of whole bytes; readers differ in what they make of others, even where the odd bits are 0."""
    content = octets(data, Tag.BIT_STRING)
    if content[:1] != b"\0":
        raise NotDer("bits that are not whole bytes")
    return content[1:]


def integer(data: bytes) -> int:
    """Read an INTEGER."""
    return int(_decode(data, univ.Integer()))


def boolean(data: bytes) -> bool:
    """Read a BOOLEAN."""
    return bool(_decode(data, univ.Boolean()))


def oid(data: bytes) -> Oid:
    """Read an OBJECT IDENTIFIER."""
    return tuple(int(arc) for arc in _decode(data, univ.ObjectIdentifier()))


def _tag_set(kind: Tag) -> tag.TagSet:
    """Split the identifier octet into class, form and number (X.690 §8.1.2)."""
    return tag.TagSet((), tag.Tag(kind & 0xC0, kind & 0x20, kind & 0x1F))


def _decode(data: bytes, spec: object) -> Any:  # noqa: ANN401 - pyasn1 has no types; callers convert at once
    try:
        value, rest = cast("tuple[Any, bytes]", decoder.decode(data, asn1Spec=spec))
        again = cast("bytes", encoder.encode(value))
    except Exception:  # noqa: BLE001 - pyasn1 promises no closed set; this is its border
        raise NotDer("bytes that are not DER of this type") from None
    if rest or again != data:
        raise NotDer("trailing bytes or another encoding")
    return value
