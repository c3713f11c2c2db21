"""How many documents `nodeattest issuer serve` hands out on one core, over TLS and connections that are kept.

The server is the command as users start it, in a process of its own; the clients of this process ask one thing after
another on each connection. Counted against the server's own CPU time, so that neither the clients nor the rest of the
machine weigh in.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import tempfile
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from bench.figures import Figure
from nodeattest_sandbox.certificates import builder
from nodeattest_sandbox.child_process import LOOPBACK, Process, wait
from nodeattest_sandbox.control_plane import free_ports, listens

CONNECTIONS = 32
WARM_UP = 1_000
REQUESTS = 20_000
GET = b"GET /c/openid/v1/jwks HTTP/1.1\r\nHost: issuer.example\r\n%b\r\n"
TICKS = 100
"""A second, in /proc (USER_HZ)."""


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name:
        directory = Path(name)
        port = free_ports(1)[0]
        process = Process("issuer-serve", _command(directory, port), directory)
        try:
            wait(process, lambda: listens(port))
            full, unchanged = asyncio.run(_measured(directory, port, process.pid()))
        finally:
            process.stop()
    note = f"TLS 1.3, {CONNECTIONS} connections, 5 keys; 1 / CPU time of the server"
    return [
        Figure("issuer serve: cached key sets, one core", full[0], "1/s", ">= 3000", note),
        Figure("… by the clock, clients beside it", full[1], "1/s", "", f"{REQUESTS} requests"),
        Figure("… of which the client has the newest (304), one core", unchanged[0], "1/s", "", note),
    ]


def _command(directory: Path, port: int) -> list[str]:
    keys = directory / "keys.pem"
    public = [ec.generate_private_key(ec.SECP256R1()).public_key() for _ in range(2)]
    more = [rsa.generate_private_key(65537, 2048).public_key() for _ in range(3)]
    keys.write_bytes(
        b"".join(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in (*public, *more))
    )
    certificate, private = _certificate(directory)
    return [
        *(sys.executable, "-m", "nodeattest_cli.main", "issuer", "serve"),
        f"--service-account-key-file={keys}",
        "--service-account-issuer=https://issuer.example/c",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={private}",
        f"--bind-address={LOOPBACK}:{port}",
    ]


def _certificate(directory: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")])
    certificate, private = directory / "tls.crt", directory / "tls.key"
    signed = builder(name, name, key.public_key()).sign(key, hashes.SHA256())
    certificate.write_bytes(signed.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, private


async def _measured(directory: Path, port: int, pid: int) -> tuple[tuple[float, float], tuple[float, float]]:
    tls = ssl.create_default_context(cafile=directory / "tls.crt")
    tls.check_hostname = False
    opened = await asyncio.gather(*(asyncio.open_connection(LOOPBACK, port, ssl=tls) for _ in range(CONNECTIONS)))
    await _load(opened, GET % b"", WARM_UP)
    full = await _rates(opened, GET % b"", pid)
    unchanged = await _rates(opened, GET % b"If-None-Match: *\r\n", pid)
    for _, writer in opened:
        writer.close()
    return full, unchanged


_Connections = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


async def _rates(opened: _Connections, request: bytes, pid: int) -> tuple[float, float]:
    """Requests a second of the server's CPU, and of the clock."""
    cpu, began = _cpu(pid), time.perf_counter()
    await _load(opened, request, REQUESTS)
    return REQUESTS / (_cpu(pid) - cpu), REQUESTS / (time.perf_counter() - began)


async def _load(opened: _Connections, request: bytes, count: int) -> None:
    await asyncio.gather(*(_ask(reader, writer, request, count // len(opened)) for reader, writer in opened))


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, count: int) -> None:
    for _ in range(count):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        _, named, length = head.partition(b"Content-Length: ")
        if named:
            await reader.readexactly(int(length.partition(b"\r\n")[0]))
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 304"))


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
