"""The least of a container runtime that lets kubelet start far enough to serve: it tells its version, and no more.

HTTP/2 by hand (RFC 9113, RFC 7541 literals, gRPC over HTTP/2): one answer to the first call, ``UNIMPLEMENTED`` to all
others, so that kubelet never takes the runtime for ready and touches nothing of this machine.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["RuntimeStub"]

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
_VERSION = _text(1, b"0.1.0") + _text(2, b"stub") + _text(3, b"1.0.0") + _text(4, b"v1alpha2")


class RuntimeStub:
    """Listens on a Unix socket until it is closed."""

    def __init__(self, path: Path) -> None:
        self._asked = False
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
        with contextlib.suppress(OSError, EOFError), connection.makefile("rb") as stream:
            stream.read(_PREFACE)
            connection.sendall(_frame(_SETTINGS, 0, 0))
            while head := stream.read(9):
                kind, flags, number = head[3], head[4], int.from_bytes(head[5:], "big")
                payload = stream.read(int.from_bytes(head[:3], "big"))
                if kind in {_SETTINGS, _PING} and not flags & _ACK:
                    connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
                elif kind == _DATA and flags & _END_STREAM:
                    connection.sendall(self._answer(number))

    def _answer(self, number: int) -> bytes:
        if self._asked:
            refusal = _HEAD + _header(b"grpc-status", b"12")
            return _frame(_HEADERS, _END_HEADERS | _END_STREAM, number, refusal)
        self._asked = True
        message = b"\0" + len(_VERSION).to_bytes(4, "big") + _VERSION
        end = _frame(_HEADERS, _END_HEADERS | _END_STREAM, number, _header(b"grpc-status", b"0"))
        return _frame(_HEADERS, _END_HEADERS, number, _HEAD) + _frame(_DATA, 0, number, message) + end
