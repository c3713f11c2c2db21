"""A real HTTPS server on loopback that answers what a test scripts."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from nodeattest_kube.input_scheduler import ClusterInput, InputScheduler
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.pki import ClusterPki

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """What a test sees of the running server."""

    url: str
    pki: ClusterPki
    requests: list[web.Request] = field(default_factory=list[web.Request])
    bodies: list[bytes] = field(default_factory=list[bytes])
    script: list[Handler] = field(default_factory=list[Handler])
    """Answers in order; the last one stays."""

    def kubeconfig(self, cluster: JsonObject | None = None, user: JsonObject | None = None) -> bytes:
        """Write a kubeconfig for this server."""
        mine: JsonObject = {"server": self.url, "certificate-authority-data": b64(self.pki.ca_certificate)}
        return kubeconfig({**mine, **(cluster or {})}, {"token": "t0ken"} if user is None else user)

    def asked(self) -> list[str]:
        """Tell what each request was: the page size of a list, or the version from which a watch started."""
        return [
            each.query["resourceVersion"] if "watch" in each.query else "list:" + each.query.get("limit", "all")
            for each in self.requests
        ]


def b64(data: bytes | Path) -> str:
    return base64.b64encode(data.read_bytes() if isinstance(data, Path) else data).decode()


def kubeconfig(cluster: JsonObject, user: JsonObject, **changes: JsonValue) -> bytes:
    """Write a kubeconfig of one context."""
    document: JsonObject = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "cl", "user": "u"}}],
        "clusters": [{"name": "cl", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    return json.dumps(document | changes).encode()


def server_tls(pki: ClusterPki, *names: str) -> ssl.SSLContext:
    """Make the TLS of a server with a certificate for 127.0.0.1 and ``names``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pki.files("-".join(["server", *names]), names or ("localhost",)))
    return context


@asynccontextmanager
async def serving(pki: ClusterPki, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Server]:
    """Run a scripted server."""
    server = Server("", pki)

    async def handle(request: web.Request) -> web.StreamResponse:
        server.requests.append(request)
        server.bodies.append(await request.read())
        return await (server.script.pop(0) if len(server.script) > 1 else server.script[0])(request)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls or server_tls(pki)).start()
    server.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def speaking(
    speak: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    pki: ClusterPki,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[Server]:
    """Run a server that does with each connection what a test says, and ends it."""
    running: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, EOFError):
                await speak(reader, writer)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.append(asyncio.create_task(serve(reader, writer)))

    async with await asyncio.start_server(start, "127.0.0.1", 0, ssl=tls) as server:
        yield Server(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", pki)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def says(*pieces: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Send pieces to whoever sends the head of a request."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return speak


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
    return {"kind": "Status", "code": status, "reason": reason, "message": message, "details": {**details}}


def thing(name: str, version: int, *, namespace: str = "", **more: JsonValue) -> JsonObject:
    """Make an object."""
    metadata: JsonObject = {"name": name, "resourceVersion": str(version), "uid": f"uid-{name}"}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": "v1", "kind": "Thing", "metadata": metadata, **more}


def listing(version: int | str, *items: JsonObject, continues: str = "") -> JsonObject:
    """Make a list page."""
    metadata: JsonObject = {"resourceVersion": str(version), "continue": continues}
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


async def hang(_request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def forever(request: web.Request) -> None:
    await hang(request)


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
