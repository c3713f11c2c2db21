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
_NO_TABLE = b"\0\x01\0\0\0\0"
"""SETTINGS_HEADER_TABLE_SIZE 0: the client writes every path out."""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _header(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _text(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


_HEAD = _STATUS_200 + _header(b"content-type", b"application/grpc")
_ANSWERS = {
    # /runtime.v1.RuntimeService/Version, /runtime.v1.ImageService/ImageFsInfo
    "9962cb6a49a92afdc2bedb6a49a92ee2d9dcc42b1c4b620c7abf": b"".join(
        _text(number, value) for number, value in enumerate((b"0.1.0", b"stub", b"1.0.0", b"v1"), 1)
    ),
    "9b62cb6a49a92afdc2be4a47317716cee62158c948e62e1464aa53ff": b"",
}
"""By the path in Huffman's code (RFC 7541, appendix B), as kubelet writes it."""


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
        calls = dict[int, bytes | None]()
        with contextlib.suppress(OSError, EOFError), connection.makefile("rb") as stream:
            stream.read(_PREFACE)
            connection.sendall(_frame(_SETTINGS, 0, 0, _NO_TABLE))
            while head := stream.read(9):
                kind, flags, number = head[3], head[4], int.from_bytes(head[5:], "big")
                payload = stream.read(int.from_bytes(head[:3], "big"))
                if kind in {_SETTINGS, _PING} and not flags & _ACK:
                    connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
                elif kind == _HEADERS:
                    answers = [body for path, body in _ANSWERS.items() if bytes.fromhex(path) in payload]
                    calls[number] = answers[0] if answers else None
                elif kind == _DATA and flags & _END_STREAM:
                    connection.sendall(_answer(number, calls.pop(number, None)))


def _answer(number: int, body: bytes | None) -> bytes:
    if body is None:
        refusal = _HEAD + _header(b"grpc-status", b"12")
        return _frame(_HEADERS, _END_HEADERS | _END_STREAM, number, refusal)
    message = b"\0" + len(body).to_bytes(4, "big") + body
    end = _frame(_HEADERS, _END_HEADERS | _END_STREAM, number, _header(b"grpc-status", b"0"))
    return _frame(_HEADERS, _END_HEADERS, number, _HEAD) + _frame(_DATA, 0, number, message) + end
