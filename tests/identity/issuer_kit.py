"""A server of issuers' documents in this process, API servers to read them from, and a client that can say anything."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from front_kit import LOOPBACK, Authority
from polling import until

from nodeattest_identity.issuer.documents import (
    CONFIGURATION_PATH,
    CONFIGURATION_TYPE,
    JWKS_PATH,
    JWKS_TYPE,
    Documents,
    documents,
)
from nodeattest_identity.issuer.keys import VerifyingKey, verifying_key
from nodeattest_identity.serve import app
from nodeattest_identity.serve.app import ServeSettings
from nodeattest_kube.client import ApiClient
from nodeattest_serving.program import Ports

__all__ = [
    "LIMIT", "LOOPBACK", "Answer", "Upstream", "ask", "ask_until", "get", "kubeconfig", "new_key",
    "no_client", "pem", "running", "upstream",
]  # fmt: skip

LIMIT: Final = 60.0
"""Seconds for anything that is waited for."""


def new_key() -> VerifyingKey:
    return verifying_key(ec.generate_private_key(ec.SECP256R1()).public_key())


def pem(*keys: VerifyingKey) -> bytes:
    return b"".join(key.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in keys)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    headers: dict[str, str]
    """By names in lower case, without the date."""
    body: bytes


async def ask(port: int, request: bytes, tls: ssl.SSLContext | None = None) -> Answer:
    """Send bytes and read the answer, to the end of the connection if it says no length."""
    async with asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=tls)
        try:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            silent = request.startswith(b"HEAD") or first.split()[1] == "304"
            body = b"" if silent else await reader.readexactly(int(headers["content-length"]))
        finally:
            writer.close()
    headers.pop("date", None)
    return Answer(int(first.split()[1]), headers, body)


async def ask_until(condition: Callable[[Answer], bool], port: int, request: bytes) -> Answer:
    """Ask until the answer is as wanted."""
    last: list[Answer] = []

    async def wanted() -> Answer | None:
        last[:] = [await ask(port, request)]
        return last[0] if condition(last[0]) else None

    return await until(wanted, "the answer", state=lambda: last)


def get(path: str, *lines: str, method: str = "GET") -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: any.example", *lines]
    return "".join([*(f"{line}\r\n" for line in head), "\r\n"]).encode()


def no_client() -> ApiClient:
    raise AssertionError("nobody asks an API server here")


@asynccontextmanager
async def running(settings: ServeSettings, connect: Callable[[], ApiClient] = no_client) -> AsyncGenerator[Ports]:
    """Run a server and give its ports."""
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(app.run(settings, connect, started=ports.set_result))
    await asyncio.wait({ports, task}, return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT)
    if task.done():
        await task
    try:
        yield ports.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass
class Upstream:
    """What one workload cluster's API server says of its issuer; change it while it runs."""

    documents: Documents
    status: int = 200
    configuration: bytes | None = None
    """In place of the right one."""
    jwks: bytes | None = None
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Path and Accept of each request."""
    kubeconfig: bytes = b""
    hang: asyncio.Event | None = None
    """Answers wait for it."""

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append((request.path, request.headers.get("Accept", "")))
        if self.hang is not None:
            await self.hang.wait()
        if self.status != 200:
            said = {"kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": self.status}
            return web.json_response(said, status=self.status)
        if request.path == CONFIGURATION_PATH:
            return _document(self.configuration or self.documents.configuration, CONFIGURATION_TYPE)
        if request.path == JWKS_PATH and request.headers.get("Accept") != JWKS_TYPE:
            return web.Response(status=406)
        if request.path == JWKS_PATH:
            return _document(self.jwks or self.documents.jwks, JWKS_TYPE)
        return web.Response(status=404)

    def rotate(self, keys: Sequence[VerifyingKey]) -> None:
        self.documents = documents(self.documents.issuer, self.documents.jwks_uri, keys)


def _document(body: bytes, kind: str) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": kind})


@asynccontextmanager
async def upstream(issuer: str, keys: Sequence[VerifyingKey], directory: Path) -> AsyncGenerator[Upstream]:
    """Run such an API server over TLS; its documents tell of a key set at an address of its own."""
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certify(directory))
    made = Upstream(documents(issuer, "https://10.0.0.1:6443/openid/v1/jwks", keys))
    runner = web.ServerRunner(web.Server(made.answer, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, LOOPBACK, 0, ssl_context=context)
    await site.start()
    port = int(runner.addresses[0][1])
    made.kubeconfig = kubeconfig(f"https://{LOOPBACK}:{port}", authority.pem)
    try:
        yield made
    finally:
        await runner.cleanup()


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
