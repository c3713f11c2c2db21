"""Strict PEM (RFC 7468) without the cryptography package, for certificates that are only compared or passed on."""

from __future__ import annotations

import binascii
import io

CERTIFICATE = "CERTIFICATE"


def decode(data: bytes, label: str) -> list[bytes]:
    """Return the DER of each block with this label. Raises ValueError for an invalid block.

    Text between blocks and blocks with other labels are skipped, as in other parsers of CA bundles. Unlike Go and
    OpenSSL, a block whose first line begins with other characters, such as a byte order mark, is an error.
    """
    begin, end = f"-----BEGIN {label}-----".encode(), f"-----END {label}-----".encode()
    found: list[bytes] = []
    lines: list[bytes] | None = None
    for line in io.BytesIO(data):
        text = line.rstrip()
        if text == begin:
            lines = []
        elif text == end and lines is not None:
            found.append(binascii.a2b_base64(b"".join(lines), strict_mode=True))
            lines = None
        elif lines is not None and text:
            lines.append(text.strip())
    if lines is not None:
        raise ValueError(f"a {label} block has no END line")
    if data.count(begin) != len(found):
        raise ValueError(f"the BEGIN line of a {label} block contains other characters")
    return found


def certificates(data: bytes) -> set[bytes]:
    """Return the DER of each certificate, for comparison. Raises ValueError."""
    return set(decode(data, CERTIFICATE))


def bundle(text: str) -> bytes:
    """Return the certificates in a text in canonical form. Raises ValueError if there is none."""
    found = decode(text.encode(), CERTIFICATE)
    if not found:
        raise ValueError("it has no CERTIFICATE block")
    return b"".join(encode(der, CERTIFICATE) for der in found)


def encode(der: bytes, label: str) -> bytes:
    """Encode one block with lines of 64 characters."""
    text = binascii.b2a_base64(der, newline=False)
    body = b"\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return b"-----BEGIN %b-----\n%b\n-----END %b-----\n" % (label.encode(), body, label.encode())
