"""HTTP and HTTPS servers in threads, which end with the process that started them.

Promises: one request a connection, so that a stopped server leaves none behind; a TLS handshake that hangs holds up its
own connection only.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Final, Self
from urllib.parse import parse_qsl, urlsplit

from nodeattest_sandbox.child_process import LOOPBACK

_LIMIT: Final = 64 * 1024
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    path: str
    parameters: Mapping[str, str]
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What it gets; a status of 0 cuts the connection."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


def as_json(value: object, status: int = 200, headers: Mapping[str, str] = _NOTHING) -> Reply:
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})


class Serving:
    def __init__(self, answer: Callable[[Request], Reply], context: ssl.SSLContext | None = None) -> None:
        class Handler(_Handler):
            reply = staticmethod(answer)

        self._server = _Server((LOOPBACK, 0), Handler)
        if context is not None:
            # The handshake is done at the first read, by the connection's own thread.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Cloud:
    """Servers that end together; a context manager."""

    def __init__(self) -> None:
        self._servers: list[Serving] = []

    def serve(self, answer: Callable[[Request], Reply], context: ssl.SSLContext | None = None) -> str:
        """Start a server; returns its URL."""
        self._servers.append(Serving(answer, context))
        return f"http{'s' if context else ''}://{LOOPBACK}:{self._servers[-1].port}"

    def stop(self) -> None:
        while self._servers:
            self._servers.pop().stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that go away in the middle."""


class _Handler(BaseHTTPRequestHandler):
    reply: Callable[[Request], Reply]
    timeout = 30

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        length = self.headers.get("Content-Length", "0")
        size = min(int(length), _LIMIT) if length.isdigit() else 0
        request = Request(
            method=self.command,
            target=self.path,
            path=parts.path,
            parameters=dict(parse_qsl(parts.query)),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self.rfile.read(size),
        )
        reply = type(self).reply(request)
        if not reply.status:
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_POST = do_PUT = _answer  # noqa: N815 - http.server names them

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
