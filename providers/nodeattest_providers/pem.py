"""The one PEM spelling of the envelope: a fixed list of labels, nothing before, between or after.

``decode`` accepts exactly what ``encode`` writes, so that no two readers differ.
Source: RFC 7468 §3, its "stricttextualmsg" with 64 columns and LF only, no headers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Final

from nodeattest_providers.errors import Denied, Reason

_COLUMNS: Final = 64
_REMEDY: Final = "send the blocks of docs/wire-format.md in their order, canonical, with nothing around them"


def encode(blocks: Iterable[tuple[str, bytes]]) -> bytes:
    return b"".join(_write(label, content) for label, content in blocks)


def decode(data: bytes, labels: Sequence[str]) -> tuple[bytes, ...]:
    """Read exactly these blocks in this order, none of them empty; anything else is ``Denied``."""
    contents: list[bytes] = []
    offset = 0
    for label in labels:
        content, offset = _read(data, offset, label)
        contents.append(content)
    if offset != len(data):
        raise _malformed("the end", f"{len(data) - offset} bytes after the last block")
    return tuple(contents)


def _write(label: str, content: bytes) -> bytes:
    text = base64.b64encode(content)
    lines = b"".join(text[start : start + _COLUMNS] + b"\n" for start in range(0, len(text), _COLUMNS))
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (label.encode(), lines, label.encode())


def _read(data: bytes, offset: int, label: str) -> tuple[bytes, int]:
    begin = b"-----BEGIN %b-----\n" % label.encode()
    end = b"-----END %b-----\n" % label.encode()
    if not data.startswith(begin, offset):
        raise _malformed(f"a {label} block at byte {offset}", "something else")
    stop = data.find(end, offset)
    if stop < 0:
        raise _malformed(f"the end of the {label} block", "none")
    try:
        content = base64.b64decode(data[offset + len(begin) : stop].replace(b"\n", b""), validate=True)
    except binascii.Error:
        raise _malformed(f"base64 in the {label} block", "other text") from None
    stop += len(end)
    # Writing it again is the whole grammar: columns, line ends, padding, trailing bits.
    if not content or _write(label, content) != data[offset:stop]:
        raise _malformed(f"the canonical spelling of the {label} block", "an empty block or another spelling")
    return content, stop


def _malformed(expected: str, got: str) -> Denied:
    return Denied(Reason.ENVELOPE_MALFORMED, expected=expected, got=got, remedy=_REMEDY)
