"""Servers of issuers' documents on loopback HTTPS: an issuer, an API server, or the public side of a folder."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from front_kit import Authority

from nodeattest_identity.issuer.documents import (
    CONFIGURATION_PATH,
    CONFIGURATION_TYPE,
    JWKS_PATH,
    JWKS_TYPE,
    default_jwks_uri,
    documents,
)
from nodeattest_identity.issuer.keys import VerifyingKey

_TYPES: Final = {"jwks": JWKS_TYPE, "openid-configuration": CONFIGURATION_TYPE}


@dataclass(frozen=True)
class Reply:
    """One answer."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    after: threading.Event | None = None
    """What it waits for."""


@dataclass
class IssuerServer:
    """What is answered, and what was asked."""

    port: int
    ca: Path
    answers: dict[str, Reply] = field(default_factory=dict[str, Reply])
    root: Path | None = None
    """Folder of further answers, below ``/c1``."""
    spoil: Callable[[str, Reply], Reply] = lambda _path, reply: reply
    """Changes what is answered to a path."""
    asked: list[str] = field(default_factory=list[str])
    accepted: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def kubeconfig(self) -> bytes:
        """Of the API server that this is."""
        return kubeconfig(f"https://127.0.0.1:{self.port}", self.ca.read_bytes())

    def publish(self, keys: Iterable[VerifyingKey], *, issuer: str | None = None) -> None:
        """Serve the documents of these keys, as kube-apiserver would."""
        made, caching = documents(issuer or self.url, f"{self.url}{JWKS_PATH}", keys), {"Cache-Control": "max-age=3600"}
        configuration = Reply(made.configuration, headers={"Content-Type": CONFIGURATION_TYPE, **caching})
        jwks = Reply(made.jwks, headers={"Content-Type": JWKS_TYPE, **caching})
        self.answers |= {CONFIGURATION_PATH: configuration, JWKS_PATH: jwks}

    def reply(self, path: str) -> Reply:
        file = None if self.root is None else self.root / path.removeprefix("/c1/")
        found = self.answers.get(path, Reply(b"nothing here", 404))
        if file is not None and file.is_file():
            headers = {"Content-Type": _TYPES[file.name], "Cache-Control": "public, max-age=3600"}
            found = Reply(file.read_bytes(), headers=headers)
        return self.spoil(path, found)


@contextmanager
def issuer_server(directory: Path, *, root: Path | None = None) -> Generator[IssuerServer]:
    """Run one under a certificate for localhost and 127.0.0.1."""
    authority = Authority("issuer CA")
    directory.mkdir(exist_ok=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify(directory, "issuer"))
    ca = directory / "issuer-ca.crt"
    ca.write_bytes(authority.pem)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.issuer = IssuerServer(server.server_port, ca, root=root)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def jwks_of(issuer: str, keys: Iterable[VerifyingKey]) -> bytes:
    """Return the key set that is served or published for an issuer."""
    return documents(issuer, default_jwks_uri(issuer), keys).jwks


def kubeconfig(server: str, ca: bytes) -> bytes:
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(ca).decode()}
    return json.dumps({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }).encode()  # fmt: skip


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    issuer: IssuerServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that go away."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 20

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        issuer = self.server.issuer
        issuer.asked.append(self.path)
        issuer.accepted[self.path] = self.headers.get("Accept", "")
        reply = issuer.reply(self.path)
        if reply.after is not None:
            reply.after.wait(20)
        self.send_response_only(reply.status)
        for name, value in ({"Content-Length": str(len(reply.body))} | reply.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
