"""A workload cluster's API server that misbehaves on purpose, in threads of the test's process."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final

from nodeattest_sandbox.pki import ClusterPki

_BACKLOG: Final = 512
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_PAUSE: Final = 0.05
_VALUES: Final = (49_900, 499_000, None)
"""How many values pages hold; None: no end."""
_SPACES: Final = b" " * (1 << 16)


class Behaviour(StrEnum):
    """What it does with each request."""

    HANG = "hangs"
    DRIP = "drips"
    """Sends its answer byte by byte."""
    FLAP = "flaps"
    """Closes each second connection, and refuses with errors that ask for a new list."""
    FLOOD = "floods"
    """Answers with large pages: one that is read, of a list without end, one of too many values, one without end."""


class HostileServer:
    """Answers every connection in a thread of its own until it is closed."""

    def __init__(self, pki: ClusterPki, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.connections = 0
        self._answers = count()
        self._closed = threading.Event()
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(pki.server_certificate, pki.server_key)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._pki = pki
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def kubeconfig(self) -> bytes:
        """How the controller reaches it."""
        host, port = self._socket.getsockname()
        path = self._pki.directory / "hostile.conf"
        return self._pki.token_kubeconfig(path, f"https://{host}:{port}", "none").read_bytes()

    def close(self) -> None:
        """End all connections."""
        self._closed.set()
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _peer = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection:
            connection.settimeout(60)
            if self.behaviour is Behaviour.FLAP and number % 2:
                return
            with self._context.wrap_socket(connection, server_side=True) as tls:
                while not self._closed.is_set():
                    if not self._request(tls):
                        return
                    self._answer(tls)

    def _request(self, tls: ssl.SSLSocket) -> bytes:
        head = b""
        while b"\r\n\r\n" not in head and (more := tls.recv(65536)):
            head += more
        return head

    def _answer(self, tls: ssl.SSLSocket) -> None:
        if self.behaviour is Behaviour.HANG:
            self._closed.wait(60)
        elif self.behaviour is Behaviour.DRIP:
            tls.sendall(_HEAD + b"Content-Length: 100000\r\n\r\n")
            while not self._closed.wait(_PAUSE):
                tls.sendall(b" ")
        elif self.behaviour is Behaviour.FLOOD:
            self._flood(tls, next(self._answers))
        else:
            body = b'{"kind":"Status","code":410,"reason":"Expired"}'
            tls.sendall(b"HTTP/1.1 410 Gone\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    def _flood(self, tls: ssl.SSLSocket, number: int) -> None:
        values = _VALUES[number % len(_VALUES)]
        if values is None:
            tls.sendall(_HEAD + b"Content-Length: %d\r\n\r\n" % (1 << 40))
            while not self._closed.is_set():
                tls.sendall(_SPACES)
        head = b'{"kind":"List","metadata":{"resourceVersion":"1","continue":"%d"},"items":[' % number
        body = head + b'{"metadata":{"name":"a%d"},"fat":{' % number + _fat(values or 0) + b"}}]}"
        tls.sendall(_HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))


@cache
def _fat(values: int) -> bytes:
    return b",".join(b'"v%d":""' % each for each in range(values))


@contextmanager
def hostile_server(directory: Path, behaviour: Behaviour) -> Generator[HostileServer]:
    """Run one."""
    server = HostileServer(ClusterPki.make(directory, behaviour.name.lower()), behaviour)
    try:
        yield server
    finally:
        server.close()
