"""BER made definite: the metadata service gives PKCS#7 with indefinite lengths; what we send and check is DER.

What is signed, the content octets and the signed attributes, stays as it is.
Source: X.690 §8.1.3 (lengths), §8.1.5 (end of contents), §8.7.3 (octet strings in parts).
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers.errors import Denied, Reason

_MAX_SIZE: Final = 16 * 1024
"""Bytes; the metadata service gives about 1300."""
_MAX_DEPTH: Final = 16
"""Levels; a SignedData without certificates has 9."""
_CONSTRUCTED: Final = 0x20
_HIGH_TAG: Final = 0x1F
_LONG_FORM: Final = 0x80
_OCTET_STRING: Final = 0x04
_END_OF_CONTENTS: Final = b"\x00\x00"


def to_definite_length(ber: bytes) -> bytes:
    """Rewrite one BER element, which fills the bytes; anything else is ``Denied``."""
    if len(ber) > _MAX_SIZE:
        raise _malformed(f"{len(ber)} bytes")
    element, end = _element(ber, 0, len(ber), 0)
    if end != len(ber):
        raise _malformed("bytes after the element")
    return element


def _element(data: bytes, start: int, limit: int, depth: int) -> tuple[bytes, int]:
    """Rewrite the element at ``start``; return it and where it ends."""
    if depth > _MAX_DEPTH:
        raise _malformed(f"more than {_MAX_DEPTH} levels")
    if start + 2 > limit:
        raise _malformed("an element that ends early")
    tag = data[start]
    if tag & _HIGH_TAG == _HIGH_TAG or data[start : start + 2] == _END_OF_CONTENTS:
        raise _malformed("a tag that no SignedData has")
    size, start = _length(data, start + 1, limit)
    if not tag & _CONSTRUCTED:
        if size is None:
            raise _malformed("a primitive element of indefinite length")
        return _encode(tag, data[start : start + size]), start + size
    parts, end = _parts(data, start, limit if size is None else start + size, depth, indefinite=size is None)
    if tag == _OCTET_STRING | _CONSTRUCTED:
        return _encode(_OCTET_STRING, b"".join(map(_octets, parts))), end
    return _encode(tag, b"".join(parts)), end


def _parts(data: bytes, start: int, limit: int, depth: int, *, indefinite: bool) -> tuple[list[bytes], int]:
    parts: list[bytes] = []
    while indefinite or start < limit:
        if indefinite and data[start : start + 2] == _END_OF_CONTENTS:
            return parts, start + 2
        part, start = _element(data, start, limit, depth + 1)
        parts.append(part)
    return parts, start


def _length(data: bytes, start: int, limit: int) -> tuple[int | None, int]:
    """Read length octets; None for the indefinite form."""
    first, start = data[start], start + 1
    if first == _LONG_FORM:
        return None, start
    size = first
    if first > _LONG_FORM:
        octets = data[start : min(start + first - _LONG_FORM, limit)]
        size, start = int.from_bytes(octets, "big"), start + first - _LONG_FORM
    if start + size > limit:
        raise _malformed("an element that ends early")
    return size, start


def _octets(part: bytes) -> bytes:
    """Take the content of one part of an octet string, which is rewritten already."""
    if part[0] != _OCTET_STRING:
        raise _malformed("an octet string of other parts")
    return part[2:] if part[1] < _LONG_FORM else part[2 + part[1] - _LONG_FORM :]


def _encode(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < _LONG_FORM:
        return bytes((tag, size)) + content
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, _LONG_FORM | len(octets))) + octets + content


def _malformed(got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected="one BER element",
        got=got,
        remedy="send what the metadata service gives as dynamic/instance-identity/rsa2048",
    )
