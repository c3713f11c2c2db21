"""Base64 and base64url in their one spelling, so that two readers never take one text for different bytes.

Source: RFC 4648 §3.5 (canonical encoding), §4 (base64) and §5 (base64url); RFC 7515 §2 (base64url without padding).
"""

from __future__ import annotations

import binascii
from typing import Final

from nodeattest_parsing.values import ParseError

_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")
"""``+`` and ``/`` become ``!``, which is not in the alphabet, so that decoding fails."""


def encode_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def decode_base64(text: str | bytes) -> bytes:
    encoded = _octets(text, "base64")
    return _decode(encoded, encoded, "base64")


def encode_base64url(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).rstrip(b"=").translate(_TO_URL).decode("ascii")


def decode_base64url(text: str | bytes) -> bytes:
    encoded = _octets(text, "base64url")
    if b"=" in encoded:
        raise ParseError("base64url without padding", f"padding in {len(encoded)} characters")
    padded = encoded.translate(_FROM_URL) + b"=" * (-len(encoded) % 4)
    return _decode(padded, encoded, "base64url without padding")


def _octets(text: str | bytes, expected: str) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("ascii")
    except UnicodeEncodeError:
        raise ParseError(expected, f"other text of {len(text)} characters") from None


def _decode(padded: bytes, encoded: bytes, expected: str) -> bytes:
    try:
        data = binascii.a2b_base64(padded, strict_mode=True)
    except binascii.Error:
        raise ParseError(expected, f"other text of {len(encoded)} characters") from None
    if binascii.b2a_base64(data, newline=False) != padded:  # stray bits at the end
        raise ParseError(expected, f"another spelling of {len(encoded)} characters")
    return data
