"""A proxy or a sidecar in this process, between a raw socket and an upstream that keeps what it saw."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, SupportsIndex, TypeVar

from aiohttp import web
from token_kit import NOW, claims, elliptic, token

from nodeattest_identity.addon.sidecar.caller import CallerVerifier
from nodeattest_identity.addon.sidecar.service import Metrics, Sidecar, SidecarSettings
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.proxy.forward import ForwardOptions
from nodeattest_identity.proxy.refusals import ProxyLimits
from nodeattest_identity.proxy.request import read_target
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_identity.tokens.jwks_cache import JWKSCache
from nodeattest_serving.bounded_server import BindAddress
from nodeattest_serving.http_server import HttpListener

LOOPBACK: Final = "127.0.0.1"
ANY_PORT: Final = BindAddress(LOOPBACK, 0)
ISSUER: Final = "https://gateway.example"
AUDIENCE: Final = "kube-system/dashboard"
SIDECAR: Final = SidecarSettings(address=ANY_PORT, upstream=ANY_PORT)
STREAM: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
"""The beginning of an answer that does not end."""
_LIMIT: Final = 60.0
"""Seconds for one exchange."""
_HELLO: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_S = TypeVar("_S", bound=HttpListener)


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


def fixed(answer: bytes = _HELLO) -> Script:
    """Answer every request that has no body with the same bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)

    return script


def after(wanted: bytes, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") -> Script:
    """Answer once when these bytes were read, and keep what comes then."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(wanted)
        writer.write(answer)
        await reader.read()

    return script


async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await reader.read()


@asynccontextmanager
async def upstream(script: Script | None = None, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Seen]:
    """Listen as a script says, and keep what came."""
    seen, tasks, run = Seen(), set[asyncio.Task[None]](), script or fixed()

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

    server = await asyncio.start_server(serve, LOOPBACK, 0, ssl=tls)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def running(server: _S) -> AsyncGenerator[_S]:
    """Run a server."""
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class _AlicesProxy(ProxyServer):
    """Believes everybody to be Alice."""

    upstream = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        order = ForwardOptions(
            upstream=BindAddress(LOOPBACK, self.upstream),
            target=read_target(request.raw_path),
            deadline=asyncio.get_running_loop().time() + self.limits.request_seconds,
            inject=(("X-Authenticated-User", "alice"),),
        )
        return await self.forwarder.forward(request, order)


@asynccontextmanager
async def proxy(
    seen: Seen, limits: ProxyLimits | None = None, *, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[int]:
    """Serve a proxy that believes everybody to be Alice; gives its port."""
    server = _AlicesProxy(ANY_PORT, tls, limits or ProxyLimits(), user_requests=1, clock=lambda: 0.0)
    server.upstream = seen.port
    async with running(server):
        yield server.port


@asynccontextmanager
async def sidecar(
    seen: Seen,
    settings: SidecarSettings = SIDECAR,
    *,
    audiences: Callable[[], frozenset[str]] = lambda: frozenset({AUDIENCE}),
    now: Callable[[], float] = lambda: NOW,
    metrics: Metrics | None = None,
) -> AsyncGenerator[Sidecar]:
    """Serve a sidecar at the time of the tokens."""

    async def keys() -> tuple[VerifyingKey, ...]:
        return (elliptic().verifying,)

    verifier = CallerVerifier(
        keys=JWKSCache(keys, monotonic=lambda: 0.0),
        issuer=ISSUER,
        audiences=audiences,
        longest_lifetime=3600.0,
        now=now,
    )
    settings = replace(settings, upstream=BindAddress(LOOPBACK, seen.port))
    async with running(Sidecar(settings, verifier, metrics or Metrics(), clock=lambda: 0.0)) as server:
        yield server


def request(target: str = "/", *lines: str, method: str = "GET", host: str = "addon.example") -> bytes:
    """Write a request without a body."""
    return "\r\n".join((f"{method} {target} HTTP/1.1", f"Host: {host}", *lines, "", "")).encode("latin-1")


@asynccontextmanager
async def connected(port: int, data: bytes = b"", tls: ssl.SSLContext | None = None) -> AsyncGenerator[Connection]:
    """Connect, and send bytes; the block ends in bounded time."""
    async with asyncio.timeout(_LIMIT):
        reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=tls)
        try:
            writer.write(data)
            yield reader, writer
        finally:
            writer.transport.abort()


async def exchange(port: int, data: bytes, tls: ssl.SSLContext | None = None) -> Answer:
    """Send bytes and read one answer."""
    async with connected(port, data, tls) as (reader, _):
        return await read_answer(reader)


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one answer."""
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *rest = text[:-4].split("\r\n")
    headers = [(line.partition(":")[0], line.partition(":")[2].strip()) for line in rest]
    known = {name.lower(): value for name, value in headers}
    status = int(first.split()[1])
    body, whole = b"", True
    try:
        if status in {101, 204, 304}:
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


def users_token(user: str = "alice", *, lasts: float = 60, **changed: object) -> bytes:
    """Make a token of the gateway, with some claims changed, or left out by None."""
    said = {"sub": user, "aud": AUDIENCE, "exp": NOW + lasts} | changed
    return token(elliptic(), None, claims(**({"issuer": ISSUER} | said)))  # type: ignore[arg-type]


def asked_by(user: str = "alice", *lines: str, target: str = "/", method: str = "GET", **changed: object) -> bytes:
    """Write a request of a user with a good token."""
    bearer = f"Authorization: Bearer {users_token(user, **changed).decode()}"  # type: ignore[arg-type]
    return request(target, bearer, *lines, method=method)
