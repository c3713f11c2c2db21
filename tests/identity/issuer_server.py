"""An issuer on loopback HTTPS that answers what it is told to, and remembers who asked for what."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from front_kit import Authority

from nodeattest_identity.issuer.documents import CONFIGURATION_TYPE, JWKS_TYPE, documents
from nodeattest_identity.issuer.keys import VerifyingKey


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

    url: str
    ca: Path
    answers: dict[str, Reply] = field(default_factory=dict[str, Reply])
    asked: list[str] = field(default_factory=list[str])
    accepted: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def jwks_uri(self) -> str:
        """Where its key set is."""
        return f"{self.url}/openid/v1/jwks"

    def publish(self, keys: list[VerifyingKey], *, issuer: str | None = None, caching: str = "max-age=3600") -> None:
        """Serve the documents of these keys, as kube-apiserver would."""
        made = documents(issuer or self.url, self.jwks_uri, keys)
        configuration, keys_type = ({"Content-Type": each} for each in (CONFIGURATION_TYPE, JWKS_TYPE))
        self.answers["/.well-known/openid-configuration"] = Reply(
            made.configuration, headers=configuration | {"Cache-Control": caching}
        )
        self.answers["/openid/v1/jwks"] = Reply(made.jwks, headers=keys_type | {"Cache-Control": caching})


@contextmanager
def issuer_server(directory: Path, authority: Authority | None = None) -> Generator[IssuerServer]:
    """Run one under a certificate for localhost and 127.0.0.1."""
    authority = authority or Authority("issuer CA")
    certificate, key = authority.certify(directory, "issuer")
    ca = directory / "issuer-ca.crt"
    ca.write_bytes(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.issuer = IssuerServer(f"https://localhost:{server.server_port}", ca)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    issuer: IssuerServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that go away, as one does that distrusts the certificate."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 20

    def do_GET(self) -> None:
        """Answer as told; anything else is not found."""
        assert isinstance(self.server, _Server)
        issuer = self.server.issuer
        issuer.asked.append(self.path)
        issuer.accepted[self.path] = self.headers.get("Accept", "")
        reply = issuer.answers.get(self.path, Reply(b"nothing here", 404))
        if reply.after is not None:
            reply.after.wait(20)
        self.send_response_only(reply.status)
        for name, value in ({"Content-Length": str(len(reply.body))} | reply.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
