"""Connections without the front proxy's certificate: few, short, and never at the cost of kube-apiserver's."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from cryptography.hazmat.primitives.serialization import Encoding
from front_kit import LOOPBACK, Authority
from gateway_kit import certify

from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, GatewayTls
from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_identity.proxy.server import ProxyRequestHandler, ProxyServer
from nodeattest_serving.bounded_server import BindAddress

ELSEWHERE = "127.0.0.2"
GET = b"GET /openid/v1/jwks HTTP/1.1\r\nHost: here\r\n\r\n"
LIMIT = 120.0
FEW = 6
MANY = 30

Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Site:
    server: ProxyServer
    serving: Authority
    front_proxy: tuple[Path, Path]
    other: tuple[Path, Path]
    """Of the front proxy's CA, by a name that is not allowed."""
    opened: list[Connected] = field(default_factory=list[Connected])

    async def close(self) -> None:
        for _, writer in self.opened:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def connect(self, certificate: tuple[Path, Path] | None = None, *, local: str = LOOPBACK) -> Connected:
        context = ssl.create_default_context(cadata=self.serving.pem.decode())
        if certificate is not None:
            context.load_cert_chain(*certificate)
        connected = await asyncio.open_connection(LOOPBACK, self.server.port, ssl=context, local_addr=(local, 0))
        self.opened.append(connected)
        return connected

    async def strangers(self, number: int, *, local: str = LOOPBACK) -> list[Connected]:
        """Connect one after the other; whoever loses his place on the way is not counted."""
        come: list[Connected] = []
        for _ in range(number):
            with contextlib.suppress(OSError):
                come.append(await self.connect(local=local))
        return come


async def key_set(_request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(body=b"{}")


@asynccontextmanager
async def running(directory: Path, limits: ProxyLimits, answer: ProxyRequestHandler = key_set) -> AsyncGenerator[Site]:
    serving, front = Authority("gateway-ca"), Authority("front-proxy-ca")
    tls = GatewayTls(*certify(serving, directory, "gateway", hosts=("localhost",)))
    der = front.certificate.public_bytes(Encoding.DER)
    tls.set_trust(FrontProxyTrust(authorities=(der,), allowed_names=frozenset({"front-proxy-client"}), has_uid=False))
    server = ProxyServer(
        answer, BindAddress(LOOPBACK, 0), tls.context, limits, is_unauthenticated=tls.is_unauthenticated
    )
    await server.start()
    site = Site(
        server,
        serving,
        certify(front, directory, "front-proxy-client", client=True),
        certify(front, directory, "other-client", client=True),
    )
    try:
        async with asyncio.timeout(LIMIT):
            yield site
    finally:
        await site.close()
        await server.stop()


async def is_answered(connected: Connected) -> bool:
    """Ask on a connection; False where it has ended."""
    reader, writer = connected
    try:
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
    except (OSError, asyncio.IncompleteReadError):
        return False
    return head.startswith(b"HTTP/1.1 200 ")


async def until_refused(connected: Connected) -> None:
    """Ask on and on until the connection ends."""
    while await is_answered(connected):
        pass


async def answered(connections: list[Connected]) -> int:
    return sum([await is_answered(each) for each in connections])


def limits(**changed: float) -> ProxyLimits:
    usual = {
        "unauthenticated_connections": FEW,
        "unauthenticated_seconds": LIMIT,
    }
    return ProxyLimits(**{**usual, **changed})  # pyright: ignore[reportArgumentType] - counts are whole, seconds are not


async def test_however_many_unauthenticated_clients_connect_few_stay_and_the_front_proxy_can_connect(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, limits()) as site:
        first = await site.connect(site.front_proxy)
        come = await site.strangers(MANY)
        assert len(come) > FEW
        second = await site.connect(site.front_proxy)
        assert await is_answered(first)
        assert await is_answered(second)
        assert 0 < await answered(come) <= FEW
        assert site.server.turned_away >= MANY - FEW


async def test_an_unauthenticated_connection_ends_however_busy_and_the_front_proxys_stays(tmp_path: Path) -> None:
    async with running(tmp_path, limits(unauthenticated_seconds=3)) as site:
        front_proxy = await site.connect(site.front_proxy)
        stranger = await site.connect()
        assert await is_answered(stranger)
        await until_refused(stranger)
        assert await is_answered(front_proxy)
