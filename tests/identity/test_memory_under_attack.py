"""What connections cost that are of no use to anybody is bounded, and comes back."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from front_kit import LOOPBACK, Authority
from gateway_kit import certify

from bench.front_ends import ServingFiles, sidecar
from nodeattest_sandbox.child_process import Process, wait
from nodeattest_sandbox.control_plane import free_ports, listens

ISSUER: Final = "https://tokens.example"
GIVEN_BACK: Final = 32 << 20
"""Bytes that a process may keep after an attack."""


def resident(pid: int) -> int:
    """Bytes of memory that a process has (VmRSS, proc(5))."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) << 10


async def held(pid: int, is_over: Callable[[], bool]) -> int:
    """Return the most memory that a process had until something is over."""
    most = 0
    async with asyncio.timeout(90):
        while not is_over():
            most = max(most, resident(pid))
            await asyncio.sleep(0.05)
    return most


async def test_six_hundred_connections_without_a_handshake_leave_nothing_in_the_issuers_memory(tmp_path: Path) -> None:
    """Seen: 149 MiB, and for good."""
    certificate, private = certify(Authority("issuer-ca"), tmp_path, "issuer", hosts=("localhost",))
    key = tmp_path / "keys.pem"
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    key.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    [port] = free_ports(1)
    flags = [
        f"--service-account-key-file={key}", f"--service-account-issuer={ISSUER}", f"--bind-address={LOOPBACK}:{port}",
        f"--tls-cert-file={certificate}", f"--tls-private-key-file={private}",
    ]  # fmt: skip
    process = Process("issuer", [sys.executable, "-m", "nodeattest_cli.main", "issuer", "serve", *flags], tmp_path)
    try:
        wait(process, lambda: listens(port))
        before = resident(process.pid())
        opened = [socket.create_connection((LOOPBACK, port)) for _ in range(600)]
        until = asyncio.get_running_loop().time() + 1.0
        most = await held(process.pid(), lambda: asyncio.get_running_loop().time() > until)
        assert most < before + (40 << 20)  # 256 of them are kept
        for each in opened:
            each.close()
        await held(process.pid(), lambda: resident(process.pid()) < before + GIVEN_BACK)
    finally:
        process.stop()


_STREAMS: Final = 399
_USERS: Final = 7
"""Each has at most a quarter of all connections."""
_MARGIN: Final = {False: 64 << 20, True: 24 << 20}
"""Bytes of the manifest's limit that stay free, without and with TLS."""


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize(
    ("head", "body"), [("GET /endless", b""), ("POST /unread", b"x" * (4 << 20))], ids=["answers", "uploads"]
)
async def test_streams_that_nobody_reads_leave_the_sidecar_below_its_manifests_memory(
    head: str, body: bytes, over_tls: bool, tmp_path: Path
) -> None:
    """Seen: 546 MiB of 256, and for good."""
    over = None
    if over_tls:
        authority = Authority("sidecar-ca")
        (tmp_path / "ca.pem").write_bytes(authority.pem)
        over = ServingFiles(*certify(authority, tmp_path, "sidecar", hosts=("localhost",)), tmp_path / "ca.pem")
    with sidecar(tmp_path, over) as (one, users), ExitStack() as stack:
        before = one.memory()
        streams = [stack.enter_context(unread(one.port, one.tls)) for _ in range(_STREAMS)]
        lines = [users.line(f"u{number}") for number in range(_USERS)]
        for number, stream in enumerate(streams):
            length = f"Content-Length: {len(body)}\r\n" if body else ""
            asked = f"{head} HTTP/1.1\r\nHost: a\r\n{length}{lines[number % _USERS]}\r\n"
            stream.sendall(asked.encode())
        for stream in streams:
            stream.settimeout(60)
            assert body or stream.recv(1 << 10).startswith(b"HTTP/1.1 200"), "each has its place"
            stream.settimeout(0.01)
            with suppress(TimeoutError):
                stream.sendall(body)
        until = asyncio.get_running_loop().time() + 2.0
        most = await held(one.process.pid(), lambda: asyncio.get_running_loop().time() > until)
        assert most < one.most_memory - _MARGIN[over_tls]
        stack.close()
        await held(one.process.pid(), lambda: one.memory() < before + GIVEN_BACK)


def unread(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    """Open a connection of a client that takes little."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    client.connect((LOOPBACK, port))
    return client if tls is None else tls.wrap_socket(client, server_hostname="localhost")
