"""PEM without cryptography, for what is only compared and passed on (RFC 7468, strict form)."""

from __future__ import annotations

import binascii
import io

CERTIFICATE = "CERTIFICATE"


def decode(data: bytes, label: str) -> list[bytes]:
    """Return the DER of each block of that label, in order; raises ValueError for a block that is no PEM.

    Text between blocks and blocks of other labels are skipped, as every reader of CA bundles does. So would Go and
    OpenSSL skip a block whose first line begins with other characters, such as a byte order mark: it is an error here.
    """
    begin, end = f"-----BEGIN {label}-----".encode(), f"-----END {label}-----".encode()
    found: list[bytes] = []
    lines: list[bytes] | None = None
    for line in io.BytesIO(data):  # one at a time: tens of thousands may be empty
        text = line.rstrip()
        if text == begin:
            lines = []
        elif text == end and lines is not None:
            found.append(binascii.a2b_base64(b"".join(lines), strict_mode=True))
            lines = None
        elif lines is not None and text:
            lines.append(text.strip())
    if lines is not None:
        raise ValueError(f"a {label} block has no end")
    if data.count(begin) != len(found):
        raise ValueError(f"the first line of a {label} block does not stand alone at the left margin")
    return found


def certificates(data: bytes) -> set[bytes]:
    """Return the DER of each certificate, to be compared; raises ValueError."""
    return set(decode(data, CERTIFICATE))


def bundle(text: str) -> bytes:
    """Return the certificates in a text, and nothing else of it; raises ValueError when there is none."""
    found = decode(text.encode(), CERTIFICATE)
    if not found:
        raise ValueError("it holds no CERTIFICATE block")
    return b"".join(encode(der, CERTIFICATE) for der in found)


def encode(der: bytes, label: str) -> bytes:
    """Write one block with 64 columns."""
    text = binascii.b2a_base64(der, newline=False)
    body = b"\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return b"-----BEGIN %b-----\n%b\n-----END %b-----\n" % (label.encode(), body, label.encode())
