"""A real HTTPS server on loopback that answers what a test scripts, and a CA of its own."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodeattest_kube.input_scheduler import ClusterInput, InputScheduler
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.pki import builder

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A test CA; ``above``: the CA that certifies it, else it does so itself."""

    def __init__(self, name: str = "test CA", *, above: Authority | None = None) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = above or self
        built = builder(self._name, issuer._name, self._key.public_key())
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = built.sign(issuer._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *names: str) -> Pair:
        """Issue a certificate for DNS names and IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = builder(subject, self._name, key.public_key())
        if names:
            built = built.add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), critical=False)
        certificate = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        key_pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(certificate, key_pem)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass
class Server:
    """What a test sees of the running server."""

    url: str
    ca_pem: bytes
    authority: Authority
    requests: list[web.Request] = field(default_factory=list[web.Request])
    bodies: list[bytes] = field(default_factory=list[bytes])
    script: list[Handler] = field(default_factory=list[Handler])
    """Answers in order; the last one stays."""

    def kubeconfig(self, cluster: JsonObject | None = None, user: JsonObject | None = None) -> bytes:
        """Write a kubeconfig for this server."""
        mine: JsonObject = {"server": self.url, "certificate-authority-data": base64.b64encode(self.ca_pem).decode()}
        return kubeconfig({**mine, **(cluster or {})}, {"token": "t0ken"} if user is None else user)


def kubeconfig(cluster: JsonObject, user: JsonObject) -> bytes:
    """Write a kubeconfig of one context."""
    document: JsonObject = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "cl", "user": "u"}}],
        "clusters": [{"name": "cl", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    return json.dumps(document).encode()


def server_tls(folder: Path, *names: str, authority: Authority | None = None) -> tuple[Authority, ssl.SSLContext]:
    """Make an authority, and the TLS of a server with its certificate for ``names``."""
    authority = authority or Authority()
    pair = authority.issue("kube-apiserver", *names)
    (folder / "server.pem").write_bytes(pair.certificate + pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")
    return authority, context


@asynccontextmanager
async def serving(
    folder: Path, *names: str, authority: Authority | None = None, client_ca: Authority | None = None
) -> AsyncGenerator[Server]:
    """Run a scripted server with a certificate for ``names``."""
    authority, context = server_tls(folder, *(names or ("127.0.0.1",)), authority=authority)
    if client_ca is not None:
        context.load_verify_locations(cadata=client_ca.pem.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    server = Server("", authority.pem, authority)

    async def handle(request: web.Request) -> web.StreamResponse:
        server.requests.append(request)
        server.bodies.append(await request.read())
        return await (server.script.pop(0) if len(server.script) > 1 else server.script[0])(request)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port: int = runner.addresses[0][1]
    server.url = f"https://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


def answers(body: JsonObject | bytes, *, status: int = 200, **headers: str) -> Handler:
    """Answer with this body; header names are spelt with underscores."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def handle(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=raw, headers={"Content-Type": "application/json", **named})

    return handle


def refuses(status: int, reason: str, message: str = "no", **details: int) -> Handler:
    """Answer with a Status object."""
    return answers(status_object(status, reason, message, **details), status=status)


def status_object(status: int, reason: str, message: str = "no", **details: int) -> JsonObject:
    """Make a metav1.Status failure."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": status,
        "details": {**details},
    }


def thing(name: str, version: int, *, namespace: str = "", uid: str = "", **more: JsonValue) -> JsonObject:
    """Make an object."""
    metadata: JsonObject = {"name": name, "resourceVersion": str(version), "uid": uid or f"uid-{name}"}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": "v1", "kind": "Thing", "metadata": metadata, **more}


def listing(version: int, *items: JsonObject, continues: str = "") -> JsonObject:
    """Make a list page."""
    metadata: JsonObject = {"resourceVersion": str(version)}
    if continues:
        metadata["continue"] = continues
    return {"apiVersion": "v1", "kind": "ThingList", "metadata": metadata, "items": list(items)}


def event(kind: str, item: JsonObject) -> bytes:
    """Make one line of a watch."""
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def streams(*chunks: bytes, then: Callable[[web.Request], Awaitable[None]] | None = None) -> Handler:
    """Stream chunks, then end cleanly, or do ``then`` first."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then is not None:
            await then(request)
        return response

    return handle


async def cut(request: web.Request) -> None:
    """Cut the connection without a goodbye."""
    if request.transport is not None:
        request.transport.abort()


@asynccontextmanager
async def sending(
    send: Callable[[asyncio.StreamWriter], Awaitable[None]],
    context: ssl.SSLContext | None = None,
    authority: Authority | None = None,
) -> AsyncGenerator[Server]:
    """Run a server that sends something to whoever sends a request."""
    running: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await send(writer)
        writer.transport.abort()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.append(asyncio.create_task(serve(reader, writer)))

    async with await asyncio.start_server(start, "127.0.0.1", 0, ssl=context) as server:
        authority = authority or Authority()
        yield Server(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", authority.pem, authority)
    await asyncio.gather(*running)


class Gate(ClusterInput):
    """Counts turns and what is charged, and grants each turn at once, or when it is told to."""

    def __init__(self, *, is_open: bool = False) -> None:
        super().__init__(InputScheduler(), ("a", "a/c"))
        self.turns: list[Callable[[], bool]] = []
        self.charged = 0.0
        self._is_open = is_open

    def call_in_turn(self, grant: Callable[[], bool]) -> None:
        self.turns.append(grant)
        if self._is_open:
            asyncio.get_running_loop().call_soon(grant)

    def charge(self, seconds: float) -> None:
        self.charged += seconds
