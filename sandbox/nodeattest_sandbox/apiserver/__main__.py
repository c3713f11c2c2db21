"""``python -m nodeattest_sandbox.apiserver``: serve one cluster on a loopback port until it is stopped.

Promises: it listens on 127.0.0.1 only; the ready file names the URL once requests are answered; on SIGTERM, SIGINT, or
(with ``--exit-with-stdin``) the end of standard input it writes its state, where asked to, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aiohttp import web

from nodeattest_sandbox.apiserver.app import ApiServer, AuditLog
from nodeattest_sandbox.apiserver.jsonvalue import JsonValue, dump, load
from nodeattest_sandbox.apiserver.store import Store
from nodeattest_sandbox.apiserver.writes import Cluster

_LOOPBACK: Final = "127.0.0.1"
_SHUTDOWN: Final = 0.5  # seconds that running watches get to end


def main() -> int:
    """Run the server."""
    settings = _arguments().parse_args()
    asyncio.run(_serve(settings))
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nodeattest_sandbox.apiserver", description=__doc__)
    parser.add_argument("--tls-cert-file", type=Path, required=True)
    parser.add_argument("--tls-private-key-file", type=Path, required=True)
    parser.add_argument("--client-ca-file", type=Path, required=True)
    parser.add_argument("--secure-port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--ready-file", type=Path, required=True, help="gets the URL once the server answers")
    parser.add_argument("--audit-log", type=Path)
    parser.add_argument("--state", type=Path, help="JSON file read at the start and written at the end")
    parser.add_argument("--exit-with-stdin", action="store_true", help="end when standard input ends")
    return parser


async def _serve(settings: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if settings.exit_with_stdin:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    state: Path | None = settings.state
    cluster = Cluster.boot(Store(), now=lambda: datetime.now(UTC), snapshot=_read(state))
    audit = AuditLog(settings.audit_log, cluster.timestamp)
    runner = web.AppRunner(
        ApiServer(cluster, audit).application(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN,
        keepalive_timeout=300,
    )
    await runner.setup()
    try:
        port = await _listen(runner, settings)
        _write(settings.ready_file, f"https://{_LOOPBACK}:{port}".encode())
        await stop.wait()
    finally:
        await runner.cleanup()
        audit.close()
    if state:
        _write(state, dump(cluster.store.snapshot()))


def _read(state: Path | None) -> JsonValue:
    return load(state.read_bytes()) if state and state.exists() else None


async def _listen(runner: web.AppRunner, settings: argparse.Namespace) -> int:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert_file, settings.tls_private_key_file)
    context.load_verify_locations(settings.client_ca_file)
    context.verify_mode = ssl.CERT_OPTIONAL
    site = web.TCPSite(runner, _LOOPBACK, settings.secure_port, ssl_context=context, backlog=1024)
    await site.start()
    address = runner.addresses[0]
    return int(address[1])


def _write(path: Path, data: bytes) -> None:
    """Replace the file in one step, readable by its owner only: the state holds Secrets."""
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
