"""A gateway behind kube-apiserver: the PKI of front proxies, an add-on that tells what reached it, clients."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import ssl
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPSConnection
from pathlib import Path
from typing import Final, TypeVar, cast
from urllib.parse import unquote, urlsplit

from aiohttp import WSMsgType, web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from front_kit import LOOPBACK, Authority

from nodeattest_identity.addon.gateway.endpoints import ServiceEndpoint
from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.target import ServiceTarget
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.pki import builder, usage

NAMESPACE: Final = "nodeattest-addon-auth"
NAME: Final = "addon-gateway"
PAGE: Final = '<a href="next">relative</a> <a href="/next">of the host</a> <script src="a/b.js?x=1"></script>'
_LIMIT: Final = 60.0

T = TypeVar("T")


def certify(
    authority: Authority, directory: Path, name: str, *, hosts: tuple[str, ...] = (), client: bool = False
) -> tuple[Path, Path]:
    """Write a certificate for this common name and its key."""
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    unsigned = builder(subject, authority.name, key.public_key()).add_extension(usage(signing=False), critical=True)
    unsigned = unsigned.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if hosts:
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        names.append(x509.IPAddress(ipaddress.ip_address(LOOPBACK)))
        unsigned = unsigned.add_extension(x509.SubjectAlternativeName(names), critical=False)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    signed = unsigned.add_extension(issuer_key, critical=False).sign(authority.key, hashes.SHA256())
    certificate, private = directory / f"{name}.crt", directory / f"{name}.key"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    certificate.write_bytes(signed.public_bytes(Encoding.PEM))
    return certificate, private


def front_proxy_flags(authority: Authority, directory: Path) -> list[str]:
    """Make kube-apiserver a front proxy, as kubeadm does."""
    certificate, key = certify(authority, directory, "front-proxy-client", client=True)
    ca = directory / "front-proxy-ca.crt"
    ca.write_bytes(authority.pem)
    return [
        f"--requestheader-client-ca-file={ca}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={certificate}",
        f"--proxy-client-key-file={key}",
    ]


class FixedEndpoints:
    """Services of this machine by namespace and name."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], ServiceEndpoint] = {}

    async def resolve(self, target: ServiceTarget, /) -> ServiceEndpoint:
        found = self.known.get((target.namespace, target.service))
        if found is None:
            raise StatusError(HTTPStatus.NOT_FOUND, "no such service")
        return found


class LoopThread:
    """An event loop beside the test, for what must answer while the test waits."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[object, object, T]) -> T:
        """Run something there and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT)

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start something there."""

        async def started() -> asyncio.Task[None]:
            return asyncio.get_running_loop().create_task(work)

        return self.call(started())

    def end(self, task: asyncio.Task[None]) -> None:
        """Cancel something and wait for its end."""

        async def ended() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.call(ended())

    def close(self) -> None:
        """End the loop, and what still runs there: connections that a server has just accepted are closed."""

        async def finish() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.call(finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT)
        self._loop.close()


@dataclass
class AddOn:
    """An add-on that answers with what reached it."""

    seen: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    port: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets ``/stream`` write its second half."""
    _runner: web.ServerRunner | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None))
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, 0, ssl_context=tls).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = [(name.decode(), value.decode()) for name, value in request.raw_headers]
        told: dict[str, object] = {"method": request.method, "path": request.raw_path, "headers": headers}
        self.seen.append(told)
        path = request.raw_path.partition("?")[0]
        if path == "/ws":
            socket = web.WebSocketResponse(protocols=("echo",))
            await socket.prepare(request)
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await socket.send_str(message.data[::-1])
            return socket
        if path == "/stream":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"first\n")
            await self.go_on.wait()
            await response.write(b"second\n")
            return response
        if path == "/page":
            return web.Response(text=PAGE, content_type="text/html")
        if path.startswith("/moved"):
            status = int(path.rpartition("/")[2]) if path != "/moved" else 302
            location = unquote(request.raw_path.partition("?to=")[2])
            return web.Response(status=status, headers={"Location": location, "Set-Cookie": "session=1"})
        told["body"] = (await request.read()).decode()
        return web.json_response(told)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)

    def header_of_request(self, name: str) -> list[str]:
        """Return what the add-on got under a name, if this is its answer."""
        headers = cast("list[tuple[str, str]]", self.json["headers"])
        return [value for each, value in headers if each.lower() == name.lower()]

    def claims(self) -> dict[str, object]:
        """Return the claims of the token that the add-on got."""
        [authorization] = self.header_of_request("Authorization")
        payload = authorization.removeprefix("Bearer ").split(".")[1]
        return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def send(
    client: Client, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> Answer:
    """Send a request as a user of an API server, whatever comes back."""
    parts = urlsplit(client.server)
    sent = {**client.headers, **(headers or {})}
    return ask(client.tls, parts.port or 443, method, path, sent, body=body)


def ask(
    tls: ssl.SSLContext,
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    body: bytes | None = None,
) -> Answer:
    """Send a request to a server of this machine."""
    connection = HTTPSConnection(LOOPBACK, port, context=tls, timeout=_LIMIT)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()
