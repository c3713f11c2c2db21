"""PEM as Go's encoding/pem reads it: what comes before, between and after the blocks is skipped.

Promises: the blocks that kube-apiserver sees in the same bytes, so that a request with a foreign first block is refused
and one with later blocks is not. Source: go/src/encoding/pem/pem.go.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["PemBlock", "decode_pem"]

_BEGIN: Final = re.compile(rb"^-----BEGIN ([^\n]*?)-----[ \t\r]*(?:\n|\Z)", re.MULTILINE)
_HEADER: Final = re.compile(rb"\A[ \t]*([^:\n]+):([^\n]*)\n")


@dataclass(frozen=True, slots=True)
class PemBlock:
    """One block; ``headers`` says whether it had any."""

    label: str
    body: bytes
    headers: bool


def decode_pem(data: bytes) -> Iterator[PemBlock]:
    """Yield the well-formed blocks; a malformed one is skipped, as in Go."""
    start = 0
    while begin := _BEGIN.search(data, start):
        end = _end(data, begin)
        block = _block(begin[1], data[begin.end() : end.start()]) if end else None
        if end and block:
            yield block
            start = end.end()
        else:
            start = begin.end()


def _end(data: bytes, begin: re.Match[bytes]) -> re.Match[bytes] | None:
    pattern = rb"^-----END " + re.escape(begin[1]) + rb"-----[ \t\r]*(?:\n|\Z)"
    found = re.compile(pattern, re.MULTILINE).search(data, begin.end())
    other = re.compile(rb"^-----END ", re.MULTILINE).search(data, begin.end())
    return found if found and other and other.start() == found.start() else None


def _block(label: bytes, text: bytes) -> PemBlock | None:
    headers = False
    while header := _HEADER.match(text):
        headers, text = True, text[header.end() :]
    try:
        body = base64.b64decode(re.sub(rb"[\r\n \t]", b"", text), validate=True)
    except binascii.Error:
        return None
    return PemBlock(label.decode(errors="replace"), body, headers)
