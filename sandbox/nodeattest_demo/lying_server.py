"""A server on loopback that says it is the cluster: it answers cluster-info with whatever it likes, and listens.

Promises: it is an HTTPS server with a certificate of a CA of its own; it notes every credential that reaches it.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from nodeattest_discovery import clusterinfo
from nodeattest_sandbox.child_process import LOOPBACK
from nodeattest_sandbox.pki import ClusterPki

_TIMEOUT: Final = 5.0
"""Seconds for a handshake and a request."""


class _Quiet(ThreadingHTTPServer):
    """Says nothing of clients that hang up: those who see through it do."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Pass over a connection that broke; anything else is told."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType] - handed on as it came


class LyingServer:
    """Serves one ConfigMap to everybody, for the length of a block."""

    def __init__(self, directory: Path) -> None:
        self._pki = ClusterPki.make(directory, "attacker")
        self._data: dict[str, str] = {}
        self.credentials: list[str] = []
        """What stood in Authorization headers: nothing, if nobody was fooled."""
        self._server = _Quiet((LOOPBACK, 0), _handler(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._pki.server_certificate, self._pki.server_key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"https://{LOOPBACK}:{self._server.server_port}"

    @property
    def ca_pem(self) -> bytes:
        """Its own CA."""
        return self._pki.ca_certificate.read_bytes()

    def say(self, data: dict[str, str]) -> None:
        """Answer with this ``data`` from now on."""
        self._data = data

    def answer(self) -> bytes:
        """Write the ConfigMap."""
        metadata = {"name": clusterinfo.NAME, "namespace": clusterinfo.NAMESPACE}
        return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": self._data}).encode()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(server: LyingServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT

        def do_GET(self) -> None:
            server.credentials.extend(self.headers.get_all("Authorization") or ())
            body = server.answer()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the demo's display is elsewhere."""

    return Handler
