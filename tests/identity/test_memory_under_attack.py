"""What streams cost that nobody reads is bounded."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest
from front_kit import LOOPBACK, Authority
from gateway_kit import certify

from bench.front_ends import ServingFiles, sidecar


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


_STREAMS: Final = 399
_USERS: Final = 7
"""Each has at most a quarter of all connections."""


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize(
    ("head", "body"), [("GET /endless", b""), ("POST /unread", b"x" * (4 << 20))], ids=["answers", "uploads"]
)
async def test_streams_that_nobody_reads_leave_the_sidecar_below_its_manifests_memory(
    head: str, body: bytes, over_tls: bool, tmp_path: Path
) -> None:
    over = None
    if over_tls:
        authority = Authority("sidecar-ca")
        (tmp_path / "ca.pem").write_bytes(authority.pem)
        over = ServingFiles(*certify(authority, tmp_path, "sidecar", hosts=("localhost",)), tmp_path / "ca.pem")
    with sidecar(tmp_path, over) as (one, users), ExitStack() as stack:
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
        assert most < one.most_memory


def unread(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    """Open a connection of a client that takes little."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    client.connect((LOOPBACK, port))
    return client if tls is None else tls.wrap_socket(client, server_hostname="localhost")
