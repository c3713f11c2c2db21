"""A proxy or a sidecar in this process, between a raw socket and an upstream that keeps what it saw."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, SupportsIndex

from aiohttp import web
from token_kit import NOW, claims, elliptic, token

from nodeattest_identity.addon.sidecar.caller import CallerVerifier
from nodeattest_identity.addon.sidecar.service import Metrics, SidecarService, SidecarSettings
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.proxy.forward import Forwarder, ForwardOptions
from nodeattest_identity.proxy.request import read_target
from nodeattest_identity.proxy.server import ProxyLimits, ProxyServer, Refusal
from nodeattest_identity.tokens.jwks_cache import JWKSCache
from nodeattest_serving.bounded_server import BindAddress

LOOPBACK: Final = "127.0.0.1"
ISSUER: Final = "https://gateway.example"
AUDIENCE: Final = "kube-system/dashboard"
_LIMIT: Final = 60.0
"""Seconds for one exchange."""
_HELLO: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"


@dataclass
class Seen:
    """What an upstream got: every byte, connection by connection."""

    port: int = 0
    connections: list[bytearray] = field(default_factory=list[bytearray])
    closed: int = 0

    @property
    def bytes(self) -> bytes:
        return b"\n--\n".join(bytes(each) for each in self.connections)

    @property
    def requests(self) -> int:
        return self.bytes.count(b" HTTP/1.1\r\n")

    def values(self, name: str) -> list[str]:
        """Values of a field in everything that came, folded as CGI does it: any case, any separator."""
        found: list[str] = []
        for line in self.bytes.decode("latin-1").split("\r\n"):
            key, colon, value = line.partition(":")
            folded = "".join(each if each.isalnum() else "-" for each in key.lower())
            if colon and folded == name.lower():
                found.append(value.strip())
        return found


@dataclass(frozen=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool
    """Whether its framing said that it ended."""

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def fixed(answer: bytes = _HELLO) -> Script:
    """Answer every request that has no body with the same bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)

    return script


@asynccontextmanager
async def upstream(script: Script | None = None) -> AsyncGenerator[Seen]:
    """Listen as a script says, and keep what came."""
    seen, tasks = Seen(), set[asyncio.Task[None]]()
    run = script or fixed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = bytearray()
        seen.connections.append(kept)
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        feed = reader.feed_data

        def keep(data: Iterable[SupportsIndex]) -> None:
            kept.extend(data)
            feed(data)

        reader.feed_data = keep
        try:
            await run(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            seen.closed += 1
            writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def proxy(
    seen: Seen,
    limits: ProxyLimits | None = None,
    *,
    inject: Sequence[tuple[str, str]] = (("X-Authenticated-User", "alice"),),
    refused: list[Refusal] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[int]:
    """Serve a proxy that believes everybody to be Alice."""
    limits = limits or ProxyLimits()
    heard = refused if refused is not None else []
    async with Forwarder(limits) as forwarder:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            order = ForwardOptions(
                host=LOOPBACK,
                port=seen.port,
                target=read_target(request.raw_path),
                deadline=asyncio.get_running_loop().time() + limits.request_seconds,
                inject=inject,
            )
            return await forwarder.forward(request, order)

        server = ProxyServer(handle, BindAddress(LOOPBACK, 0), tls, limits, refused=heard.append)
        await server.start()
        try:
            yield server.port
        finally:
            await server.stop()


def request(target: str = "/", *lines: str, method: str = "GET", host: str = "addon.example") -> bytes:
    """Write a request without a body."""
    return "\r\n".join((f"{method} {target} HTTP/1.1", f"Host: {host}", *lines, "", "")).encode("latin-1")


async def exchange(port: int, data: bytes, tls: ssl.SSLContext | None = None) -> Answer:
    """Send bytes and read one answer."""
    async with asyncio.timeout(_LIMIT):
        reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=tls)
        try:
            writer.write(data)
            return await read_answer(reader)
        finally:
            writer.close()


async def read_answer(reader: asyncio.StreamReader, *, head: bool = False) -> Answer:
    """Read one answer; ``head``: that of a HEAD."""
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *rest = text[:-4].split("\r\n")
    headers = [(line.partition(":")[0], line.partition(":")[2].strip()) for line in rest]
    known = {name.lower(): value for name, value in headers}
    status = int(first.split()[1])
    body, whole = b"", True
    try:
        if head or status in {101, 204, 304}:
            pass
        elif "content-length" in known:
            body = await reader.readexactly(int(known["content-length"]))
        elif known.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readuntil(b"\r\n")
        else:
            body = await reader.read()
    except (asyncio.IncompleteReadError, OSError) as error:
        body += error.partial if isinstance(error, asyncio.IncompleteReadError) else b""
        whole = False
    return Answer(status, headers, body, whole)


@dataclass
class Time:
    """What the sidecar takes for now."""

    now: float = float(NOW)

    def __call__(self) -> float:
        return self.now


@dataclass
class Running:
    """A sidecar that listens."""

    port: int
    service: SidecarService
    metrics: Metrics = field(repr=False)

    def count(self, name: str) -> float:
        """Read a counter of the metrics page by its name and label."""
        lines = self.metrics.render().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def users_token(user: str = "alice", *, lasts: float = 60, **changed: object) -> bytes:
    """Make a token of the gateway, with some claims changed, or left out by None."""
    said = {"sub": user, "aud": AUDIENCE, "exp": NOW + lasts} | changed
    return token(elliptic(), None, claims(**({"issuer": ISSUER} | said)))  # type: ignore[arg-type]


def authorization(given: bytes) -> str:
    """Write the header that carries a token."""
    return f"Authorization: Bearer {given.decode()}"


@asynccontextmanager
async def sidecar(
    seen: Seen,
    settings: SidecarSettings | None = None,
    *,
    audiences: Callable[[], frozenset[str]] = lambda: frozenset({AUDIENCE}),
    time: Time | None = None,
) -> AsyncGenerator[Running]:
    """Serve a sidecar at the time of the tokens."""
    usual = settings or SidecarSettings(address=BindAddress(LOOPBACK, 0), upstream=BindAddress(LOOPBACK, 1))
    settings, metrics = replace(usual, upstream=BindAddress(LOOPBACK, seen.port)), Metrics()

    async def keys() -> tuple[VerifyingKey, ...]:
        return (elliptic().verifying,)

    verifier = CallerVerifier(
        keys=JWKSCache(keys, monotonic=lambda: 0.0),
        issuer=ISSUER,
        audiences=audiences,
        longest_lifetime=3600.0,
        now=time or Time(),
    )
    async with Forwarder(settings.limits) as forwarder:
        service = SidecarService(settings, verifier, forwarder, metrics, clock=lambda: 0.0)
        server = ProxyServer(service.handle, settings.address, None, settings.limits, refused=metrics.refused)
        await server.start()
        try:
            yield Running(server.port, service, metrics)
        finally:
            await server.stop()
