"""Strict PEM (RFC 7468) of certificates that are only compared or passed on, without the cryptography package."""

from __future__ import annotations

import binascii
import io
from collections.abc import Iterable

from nodeattest_providers import pem

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


def certificates(data: bytes) -> list[bytes]:
    """Return the DER of each CERTIFICATE block. Raises ValueError for an invalid block.

    Text between blocks and blocks with other labels are skipped, as in other parsers of CA bundles. Unlike Go and
    OpenSSL, a block whose first line begins with other characters, such as a byte order mark, is an error.
    """
    found: list[bytes] = []
    lines: list[bytes] | None = None
    for line in io.BytesIO(data):
        text = line.rstrip()
        if text == _BEGIN:
            lines = []
        elif text == _END and lines is not None:
            found.append(binascii.a2b_base64(b"".join(lines), strict_mode=True))
            lines = None
        elif lines is not None and text:
            lines.append(text.strip())
    if lines is not None:
        raise ValueError("a CERTIFICATE block has no END line")
    if data.count(_BEGIN) != len(found):
        raise ValueError("the BEGIN line of a CERTIFICATE block contains other characters")
    return found


def encode(certificates: Iterable[bytes]) -> bytes:
    """Encode certificates in canonical form."""
    return pem.encode(("CERTIFICATE", der) for der in certificates)
