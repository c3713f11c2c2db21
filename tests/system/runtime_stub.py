"""The least of a container runtime that lets kubelet start far enough to serve: it tells its version, and no more.

HTTP/2 by hand (RFC 9113, RFC 7541, gRPC over HTTP/2). Answered are the calls with which kubelet looks whether a runtime
and an image service are there (CRI v1); ``UNIMPLEMENTED`` are all others, so that kubelet never takes the runtime for
ready and touches nothing of this machine.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_PREFACE = 24
_STATUS_200 = b"\x88"


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _header(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _text(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


_HEAD = _STATUS_200 + _header(b"content-type", b"application/grpc")
_HUFFMAN = {
    **dict(zip("12aceiost", (1, 2, 3, 4, 5, 6, 7, 8, 9), strict=True)),
    **dict(zip("./fghlmnpru", (0x17, 0x18, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2A, 0x2B, 0x2C, 0x2D), strict=True)),
    **dict(zip("FIRSVv", (0x61, 0x64, 0x6D, 0x6E, 0x71, 0x77), strict=True)),
}
"""RFC 7541, appendix B, as far as the paths need it: codes of 5, 6 and 7 bits."""
_PATH_NAMES = (4, 5)
"""The entries of the static table (RFC 7541, appendix A) whose name is ``:path``, which holds 61."""
_STATIC = 61


def _bits(letter: str) -> str:
    width = 5 if letter in "12aceiost" else 7 if letter in "FIRSVv" else 6
    return format(_HUFFMAN[letter], f"0{width}b")


def _path(text: str) -> bytes:
    """Encode the value of ``:path`` as kubelet does."""
    bits = "".join(map(_bits, text))
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return bytes([0x80 | len(coded)]) + coded


_ANSWERS = {
    _path("/runtime.v1.RuntimeService/Version"): _text(1, b"0.1.0")
    + _text(2, b"stub")
    + _text(3, b"1.0.0")
    + _text(4, b"v1"),
    _path("/runtime.v1.ImageService/ImageFsInfo"): b"",
}


def _integer(block: bytes, place: int, width: int) -> tuple[int, int]:
    """Read an integer (RFC 7541, 5.1); returns it and where the next thing begins."""
    limit = (1 << width) - 1
    value, place, shift = block[place] & limit, place + 1, 0
    if value < limit:
        return value, place
    while True:
        value += (block[place] & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if block[place - 1] < 0x80:
            return value, place


def _string(block: bytes, place: int) -> tuple[bytes, int]:
    """Read a string as it stands, with its length before it."""
    length, begin = _integer(block, place, 7)
    return block[place : begin + length], begin + length


class _Paths:
    """Finds ``:path`` in the header blocks of one connection, whose entries refer to earlier ones."""

    def __init__(self) -> None:
        self._entries: list[bytes] = []
        """The dynamic table, the newest first: paths, and nothing for any other header."""

    def find(self, block: bytes) -> bytes:
        """Return the path as it was sent first."""
        place, found = 0, b""
        while place < len(block):
            first = block[place]
            if first & 0x80:
                index, place = _integer(block, place, 7)
                found = self._entry(index) or found
            elif first & 0xE0 == 0x20:  # the table's size
                _, place = _integer(block, place, 5)
            else:
                index, place = _integer(block, place, 6 if first & 0x40 else 4)
                if not index:
                    _, place = _string(block, place)
                value, place = _string(block, place)
                path = value if index in _PATH_NAMES or self._entry(index) else b""
                found = path or found
                if first & 0x40:
                    self._entries.insert(0, path)
        return found

    def _entry(self, index: int) -> bytes:
        return self._entries[index - _STATIC - 1] if index > _STATIC else b""


class RuntimeStub:
    """Listens on a Unix socket until it is closed."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for item in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        paths, calls = _Paths(), dict[int, bytes]()
        with contextlib.suppress(OSError, EOFError), connection.makefile("rb") as stream:
            stream.read(_PREFACE)
            connection.sendall(_frame(_SETTINGS, 0, 0))
            while head := stream.read(9):
                kind, flags, number = head[3], head[4], int.from_bytes(head[5:], "big")
                payload = stream.read(int.from_bytes(head[:3], "big"))
                if kind in {_SETTINGS, _PING} and not flags & _ACK:
                    connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
                elif kind == _HEADERS:
                    calls[number] = paths.find(payload)
                elif kind == _DATA and flags & _END_STREAM:
                    connection.sendall(_answer(number, _ANSWERS.get(calls.pop(number, b""))))


def _answer(number: int, body: bytes | None) -> bytes:
    if body is None:
        refusal = _HEAD + _header(b"grpc-status", b"12")
        return _frame(_HEADERS, _END_HEADERS | _END_STREAM, number, refusal)
    message = b"\0" + len(body).to_bytes(4, "big") + body
    end = _frame(_HEADERS, _END_HEADERS | _END_STREAM, number, _header(b"grpc-status", b"0"))
    return _frame(_HEADERS, _END_HEADERS, number, _HEAD) + _frame(_DATA, 0, number, message) + end
