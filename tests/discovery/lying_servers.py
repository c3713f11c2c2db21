"""API servers that say what a test tells them, over real TLS under any certificate; every header is recorded."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clouds.authority import PublicKey, certify, constraint, key_usage, named, purposes
from nodeattest_discovery import clusterinfo, jws
from nodeattest_discovery.node.client import Environment
from nodeattest_discovery.node.clock import Clock
from nodeattest_discovery.pins import CaPin, pin_of
from nodeattest_discovery.token import BootstrapToken

CLUSTER_INFO = f"{clusterinfo.PATH}?timeout=10s"
LOOPBACK = x509.IPAddress(ip_address("127.0.0.1"))
QUIET = {"host", "accept", "accept-encoding", "user-agent"}
"""The headers that a question for cluster-info may have."""


def subject_of(name: str, group: str | None = None) -> x509.Name:
    organization = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*organization, x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Ca:
    """A certification authority in memory, whose validity and place under another a test chooses."""

    def __init__(
        self, name: str = "kubernetes", *, starts: float = -300, lasts: float = 86400, above: Ca | None = None
    ) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = named(name)
        self.certificate = (above or self).issue(
            self.name, self.key.public_key(), is_ca=True, starts=starts, lasts=lasts
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def pin(self) -> CaPin:
        return pin_of(self.certificate)

    def issue(
        self,
        subject: x509.Name,
        key: PublicKey,
        *,
        is_ca: bool = False,
        starts: float = -300,
        lasts: float = 86400,
        usage: x509.ObjectIdentifier | None = None,
        names: Sequence[x509.GeneralName] = (),
    ) -> x509.Certificate:
        extensions = [constraint(ca=is_ca), key_usage(*(("key_cert_sign",) if is_ca else ("digital_signature",)))]
        if usage is not None:
            extensions.append(purposes(usage))
        if names:
            extensions.append((x509.SubjectAlternativeName(names), False))
        begin, end = (datetime.now(UTC) + timedelta(seconds=seconds) for seconds in (starts, lasts))
        return certify(subject, key, self.name, self.key, *extensions, begin=begin, end=end)

    def certified(
        self,
        name: str,
        *held: x509.GeneralName,
        group: str | None = None,
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH,
        starts: float = -300,
        lasts: float = 86400,
    ) -> bytes:
        """Make a key and its certificate for a name, an organization and SANs of choice, in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = subject_of(name, group)
        made = self.issue(subject, key.public_key(), usage=usage, names=held, starts=starts, lasts=lasts)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return private + made.public_bytes(Encoding.PEM)

    def certify(
        self, directory: Path, name: str = "server", *, client: bool = False, host: str = "localhost"
    ) -> tuple[Path, Path]:
        """Write the certificate and the key of a server of this machine, or of a client."""
        directory.mkdir(exist_ok=True)
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        key, begin, pem = self.certified(name, LOOPBACK, x509.DNSName(host), usage=usage).partition(b"-----BEGIN CERT")
        certificate, private = directory / f"{name}.crt", directory / f"{name}.key"
        private.write_bytes(key)
        certificate.write_bytes(begin + pem)
        return certificate, private

    def server(
        self,
        names: Sequence[str] = (),
        addresses: Sequence[str] = ("127.0.0.1",),
        *,
        starts: float = -300,
        lasts: float = 86400,
    ) -> bytes:
        """Make a server's key and certificate, in PEM."""
        held = [*map(x509.DNSName, names), *(x509.IPAddress(ip_address(one)) for one in addresses)]
        return self.certified("kube-apiserver", *held, starts=starts, lasts=lasts)

    def client(
        self,
        key: PublicKey,
        node: str,
        *,
        organization: str = "system:nodes",
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
        **changes: Any,
    ) -> bytes:
        """Certify a node's key, as a client unless told otherwise."""
        subject = subject_of(f"system:node:{node}", organization)
        return self.issue(subject, key, usage=usage, **changes).public_bytes(Encoding.PEM)

    def kubelets(self, node: str = "worker-1") -> bytes:
        """Make what the signer kubernetes.io/kubelet-serving gives a node."""
        return self.certified(f"system:node:{node}", LOOPBACK, x509.DNSName(node), group="system:nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a server answers."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    raw: bytes | None = None
    """These bytes instead of all that, and then the end of the connection."""
    ends: bool = False
    """Whether TLS says that this is the end."""
    slowly: float = 0.0
    """Seconds before each byte of the body."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A question that a server got."""

    path: str
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.headers}


Says = Callable[[int], Reply]
"""Tells the reply to the first (0), second, ... question."""


def script(*replies: Reply) -> Says:
    """Say these in turn, the last one for ever."""
    return lambda number: replies[min(number, len(replies) - 1)]


class LoopbackServer:
    """A TLS server on loopback, for the length of a block; its handlers find it as ``server.owner``."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], certificate: bytes, *, host: str = "127.0.0.1") -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.present(certificate)
        self._server = _Server(host, handler, self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def present(self, certificate: bytes) -> None:
        """Serve with this key and certificate from now on."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate)
            file.flush()
            self.context.load_cert_chain(file.name)

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.endpoint}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, handler: type[BaseHTTPRequestHandler], owner: LoopbackServer) -> None:
        self.owner = owner
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), handler)
        self.socket = owner.context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep still: a client that does not like a certificate goes away."""


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP/1.1 and logs nothing."""

    protocol_version = "HTTP/1.1"
    timeout = 20

    @property
    def owner(self) -> LoopbackServer:
        assert isinstance(self.server, _Server)
        return self.server.owner

    def log_message(self, format: str, *args: object) -> None:
        """Keep still."""


class LyingServer(LoopbackServer):
    """A server that says what it is told."""

    def __init__(self, certificate: bytes, says: Says | Reply, *, host: str = "127.0.0.1") -> None:
        """``says`` may be set later: many answers name the server's own port."""
        self.says = says
        self.seen: list[Seen] = []
        super().__init__(_LyingHandler, certificate, host=host)

    @property
    def paths(self) -> list[str]:
        return [seen.path for seen in self.seen]

    @property
    def headers(self) -> set[str]:
        """Every header that it ever saw."""
        return {name for seen in self.seen for name in seen.names}

    def reply(self, seen: Seen) -> Reply:
        self.seen.append(seen)
        return self.says if isinstance(self.says, Reply) else self.says(len(self.seen) - 1)


class _LyingHandler(Handler):
    def do_GET(self) -> None:
        assert isinstance(self.owner, LyingServer)
        headers = tuple((name.lower(), value) for name, value in self.headers.items())
        reply = self.owner.reply(Seen(self.path, headers))
        if reply.raw is not None:
            self.wfile.write(reply.raw)
            self.close_connection = True
            if reply.ends and isinstance(self.connection, ssl.SSLSocket):
                with contextlib.suppress(OSError):  # the other side may just go
                    self.connection.unwrap()
            return
        self.send_response_only(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        for part in [bytes([byte]) for byte in reply.body] if reply.slowly else [reply.body]:
            time.sleep(reply.slowly)  # a server that drips
            self.wfile.write(part)


def config_map(data: Mapping[str, str], **changes: object) -> Reply:
    """Answer with the ConfigMap cluster-info, as an API server does."""
    document = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "cluster-info", "namespace": "kube-public", "uid": "1", "resourceVersion": "7"},
        "data": dict(data),
    }
    return Reply(body=json.dumps(document | changes).encode())


def signed(text: str, token: BootstrapToken, signature: str | None = None) -> Reply:
    """Answer with cluster-info and a token's signature: its own, unless another is given."""
    key = clusterinfo.SIGNATURE_PREFIX + token.id
    return config_map({"kubeconfig": text, key: signature or jws.sign(text.encode(), token)})


def status(code: int, reason: str = "") -> Reply:
    """Answer as an API server refuses."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return Reply(body=json.dumps(body).encode(), status=code)


@dataclass(slots=True)
class VirtualTime:
    """Minutes that take no time."""

    moment: float = 0.0
    told: list[str] = field(default_factory=list[str])
    ahead: float = 0.0
    """By how much the wall clock is wrong."""

    def sleep(self, seconds: float) -> None:
        self.moment += seconds

    @property
    def clock(self) -> Clock:
        return Clock(
            now=lambda: time.time() + self.ahead,
            monotonic=lambda: self.moment,
            sleep=self.sleep,
            on_wait=lambda _, what, __: self.told.append(what),
        )

    def environment(self, limit: float = 300.0, public_roots: bytes | None = None) -> Environment:
        return Environment(clock=self.clock, log=self.told.append, limit=limit, public_roots=public_roots)
