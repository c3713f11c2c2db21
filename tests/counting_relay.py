"""A relay in front of a server that counts connections, and can hold new ones: each TLS connection is one handshake."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_PART = 64 * 1024


class CountingRelay:
    """Passes bytes on in both directions, as they are; a context manager."""

    def __init__(self, server: str) -> None:
        """``server`` is the URL of a server on this machine."""
        where = urlsplit(server)
        self._target = (where.hostname or "", where.port or 443)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.passing = threading.Event()
        """While it is not set, new connections wait."""
        self.passing.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.passing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in self._pairs:
            for each in pair:
                _shut(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self.passing.wait()
            pair = (client, socket.create_connection(self._target))
            self._pairs.append(pair)
            threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    with client, server, selectors.DefaultSelector() as ready:
        ready.register(client, selectors.EVENT_READ, server)
        ready.register(server, selectors.EVENT_READ, client)
        while True:
            for key, _events in ready.select():
                source, target = key.fileobj, key.data
                assert isinstance(source, socket.socket)
                assert isinstance(target, socket.socket)
                try:
                    part = source.recv(_PART)
                    target.sendall(part)
                except OSError:
                    return
                if not part:
                    return


def _shut(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already
