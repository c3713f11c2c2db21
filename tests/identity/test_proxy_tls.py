"""A proxy over TLS: the same rules, and the upstream is told of it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from front_kit import Authority
from polling import until
from proxy_kit import LOOPBACK, exchange, proxy, read_answer, request, upstream

from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_identity.proxy.refusals import Refusal
from nodeattest_serving.tls import ServingCertificate

KEY = "MDEyMzQ1Njc4OWFiY2RlZg=="
HANDSHAKE = ("Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13")
SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n"
)


@pytest.fixture(name="sides", scope="module")
def _sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make the server's context and the client's."""
    authority = Authority()
    certificate, key = authority.certify(tmp_path_factory.mktemp("tls") / "files")
    assert isinstance(certificate, Path)
    return ServingCertificate(certificate, key).context, ssl.create_default_context(cadata=authority.pem.decode())


async def test_requests_over_tls_pass_and_the_upstream_is_told_https(
    sides: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server, client = sides
    async with upstream() as seen, proxy(seen, tls=server) as port:
        answer = await exchange(port, request("/", "X-Forwarded-Proto: http"), client)
        assert (answer.status, answer.body) == (200, b"hello")
        assert seen.values("x-forwarded-proto") == ["https"]


async def test_headers_that_are_too_large_or_too_slow_are_refused_over_tls_too(
    sides: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server, client = sides
    heard: list[Refusal] = []
    async with upstream() as seen, proxy(seen, ProxyLimits(header_seconds=3), refused=heard, tls=server) as port:
        assert (await exchange(port, request("/", "X-A: " + "b" * 200_000), client)).status == 431
        assert (await exchange(port, b"GET / HTTP/1.1\r\n", client)).status == 408
        assert heard == [Refusal.HEADERS_TOO_LARGE, Refusal.REQUEST_TOO_SLOW]
        assert seen.connections == []


async def test_bytes_after_an_upgrade_pass_over_tls_and_end_together(
    sides: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server, client = sides

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHING % b"BACScCJPNqyz+UBoqMH89VmURoA=")
        while data := await reader.read(1 << 16):
            writer.write(data)

    async with upstream(script) as seen, proxy(seen, tls=server) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=client)
        writer.write(request("/", *HANDSHAKE))
        answer = await read_answer(reader)
        assert answer.status == 101
        for size in (10, 200_000):
            writer.write(b"x" * size)
            assert await reader.readexactly(size) == b"x" * size
        writer.close()
        await until(lambda: seen.closed == 1)
