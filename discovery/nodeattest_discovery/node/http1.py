"""HTTP/1.1 as a client: one request's bytes, and a reader of its response that takes one framing only.

Promises: a request has no byte that would begin another one; a response has a length, chunks, or the connection's end,
never two of them; line ends are CRLF, fields are not folded, numbers are digits. Every read is bounded by what the
caller says, or by the limits here. What differs is a ``ProtocolError``, which quotes nothing of it.
Leaves to others: the connection, time and the whole size (``https``), what a response means.
Source: RFC 9112 §2.2, §3.2, §4, §5, §6, §7.1, §9.3; RFC 9110 §5.5, §5.6.2, §15.2.

Not ``http.client``, which with the parser of e-mail that it uses costs a node 9 ms at each join, and accepts more.
"""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterable
from typing import Final

__all__ = ["ProtocolError", "ResponseReader", "request_head"]

_LINE: Final = 16 * 1024
"""Bytes of a line that is no body; Go and nginx send less than 8 KiB."""
_MAX_FIELDS: Final = 100
_PIECE: Final = 64 * 1024
"""Bytes of a body that are read at once."""
_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?\r\n")
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)\r\n")
"""White space around the value is in it: a pattern that leaves it out has many ways to try for a line of spaces."""
_LENGTH: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[\t ]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_TARGET: Final = re.compile(r"[\x21-\x7e]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_FINAL: Final = 200
_SWITCHING: Final = 101
_WITHOUT_BODY: Final = frozenset({204, 304})


class ProtocolError(Exception):
    """The peer does not speak HTTP/1.1, or not all of it came."""


def request_head(method: str, target: str, fields: Iterable[tuple[str, str]]) -> bytes:
    """Write a request up to its body; raises ValueError for what would not stay in its line."""
    lines = [f"{method} {target} HTTP/1.1"]
    if not method.isalpha() or _TARGET.fullmatch(target) is None:
        raise ValueError("no such request")
    for name, value in fields:
        if re.fullmatch(_TOKEN, name.encode()) is None or _VALUE.fullmatch(value) is None:
            raise ValueError("no such field")
        lines.append(f"{name}: {value}")
    return "\r\n".join((*lines, "", "")).encode("latin-1")


class ResponseReader:
    """One response: its head is read at once, its body when it is asked for."""

    def __init__(self, file: io.BufferedReader) -> None:
        """Read the head; raises ``ProtocolError``."""
        self._file = file
        minor, self.status = self._status()
        self.fields = self._fields()
        """Names in lower case, in the order in which they came."""
        options = {option.strip().lower() for value in self.values("connection") for option in value.split(",")}
        self.keeps_connection = minor > 0 and "close" not in options
        """Whether another request may follow once the body is read."""
        self.has_ended = False
        """Whether the body is read to its end."""
        self._pieces = self._body()
        self._unread = bytearray()
        """Of the body, what came behind the last line."""

    def values(self, name: str) -> list[str]:
        """Return a field's values; ``name`` in lower case."""
        return [value for found, value in self.fields if found == name]

    def read(self, limit: int) -> bytes:
        """Read the rest of the body, but no more than the piece that exceeds ``limit``; raises ``ProtocolError``."""
        body, self._unread = self._unread, bytearray()
        while len(body) <= limit and (piece := next(self._pieces, b"")):
            body += piece
        return bytes(body)

    def readline(self, limit: int) -> bytes:
        """Read a line of the body with its end; one that exceeds ``limit``, or is the last, may come without."""
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0 and (searched := len(self._unread)) <= limit:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._unread += piece
        cut = end + 1 if 0 <= end < limit else limit
        line = bytes(self._unread[:cut])
        del self._unread[:cut]
        return line

    def _status(self) -> tuple[int, int]:
        """Read the first status line that is final (RFC 9110 §15.2)."""
        while True:
            found = _STATUS.fullmatch(self._file.readline(_LINE))
            if found is None:
                raise ProtocolError("no status line")
            status = int(found[2])
            if status >= _FINAL:
                return int(found[1]), status
            if status == _SWITCHING:
                raise ProtocolError("another protocol, which nobody asked for")
            self._fields()

    def _fields(self) -> tuple[tuple[str, str], ...]:
        """Read fields up to the empty line."""
        fields: list[tuple[str, str]] = []
        while (line := self._file.readline(_LINE)) != b"\r\n":
            found = _FIELD.fullmatch(line)
            if found is None or len(fields) == _MAX_FIELDS:
                raise ProtocolError("a field that is none, or too many")
            fields.append((found[1].decode("ascii").lower(), found[2].strip(b"\t ").decode("latin-1")))
        return tuple(fields)

    def _body(self) -> Generator[bytes]:
        """Choose the framing (RFC 9112 §6.3)."""
        codings, lengths = self.values("transfer-encoding"), self.values("content-length")
        if codings:
            if lengths or [coding.lower() for coding in codings] != ["chunked"]:
                raise ProtocolError("another transfer coding, or a length beside it")
            return self._chunks()
        if self.status in _WITHOUT_BODY:
            return self._exactly(0)
        if lengths:
            if len(set(lengths)) > 1 or _LENGTH.fullmatch(lengths[0]) is None:
                raise ProtocolError("a length that is none, or two")
            return self._exactly(int(lengths[0]))
        self.keeps_connection = False
        return self._until_closed()

    def _exactly(self, size: int, *, is_all: bool = True) -> Generator[bytes]:
        while size:
            piece = self._file.read1(min(size, _PIECE))
            if not piece:
                raise ProtocolError("the connection ended before the body")
            size -= len(piece)
            if is_all and not size:
                self.has_ended = True
            yield piece
        self.has_ended = self.has_ended or is_all

    def _chunks(self) -> Generator[bytes]:
        while True:
            found = _CHUNK.fullmatch(self._file.readline(_LINE))
            if found is None:
                raise ProtocolError("a chunk that is none")
            size = int(found[1], 16)
            if not size:
                self._fields()  # trailers: nobody asked for any
                self.has_ended = True
                return
            yield from self._exactly(size, is_all=False)
            if self._file.read(2) != b"\r\n":
                raise ProtocolError("a chunk that is longer than it says")

    def _until_closed(self) -> Generator[bytes]:
        while piece := self._file.read1(_PIECE):
            yield piece
        self.has_ended = True
