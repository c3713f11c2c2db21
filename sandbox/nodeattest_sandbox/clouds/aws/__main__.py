"""``python -m nodeattest_sandbox.clouds.aws DIRECTORY``: the sandbox AWS, until its standard input ends.

Writes the CA of the HTTPS front (``ca.crt``), the certificates of the regions (``regions/<region>.pem``) and, last,
``ready``: where front and control are, and the control's secret.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import ssl
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from aiohttp import web
from cryptography.hazmat.primitives.serialization import Encoding

from nodeattest_sandbox.child_process import LOOPBACK
from nodeattest_sandbox.clouds.aws.auth_proxy import AuthProxy
from nodeattest_sandbox.clouds.aws.backend import Backend
from nodeattest_sandbox.clouds.aws.control import Control
from nodeattest_sandbox.clouds.aws.state import REGIONS, Cloud, new_cloud
from nodeattest_sandbox.pki import server_tls

_SUFFIX: Final = "amazonaws.com"


async def main(directory: Path) -> None:
    """Serve."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_reader(sys.stdin.fileno(), stopping.set)
    cloud, backend = new_cloud(), Backend()
    async with AsyncExitStack() as stack:
        stack.callback(backend.stop)
        tls = _prepare(directory, cloud)
        secret = secrets.token_hex()
        front = await _serve(AuthProxy(cloud, backend.url).app(), stack, tls)
        control = await _serve(Control(cloud, backend, secret).app(), stack)
        ready = {"front": f"https://{LOOPBACK}:{front}", "control": f"http://{LOOPBACK}:{control}", "secret": secret}
        _write(directory / "ready", json.dumps(ready).encode())
        await stopping.wait()


def _prepare(directory: Path, cloud: Cloud) -> ssl.SSLContext:
    """Make the front's keys, and write down what clients must trust."""
    regions = directory / "regions"
    regions.mkdir()
    for region, key in cloud.regions.items():
        _write(regions / f"{region}.pem", key.certificate.public_bytes(Encoding.PEM))
    names = [f"{service}.{region}.{_SUFFIX}" for service in ("sts", "ec2") for region in REGIONS]
    return server_tls(directory, "aws", [*names, "localhost"])[1]


async def _serve(app: web.Application, stack: AsyncExitStack, tls: ssl.SSLContext | None = None) -> int:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, LOOPBACK, 0, ssl_context=tls).start()
    return int(runner.addresses[0][1])


def _write(path: Path, content: bytes) -> None:
    """Write a private file that appears whole."""
    partial = path.with_name(f".{path.name}")
    partial.touch(mode=0o600)
    partial.write_bytes(content)
    partial.replace(path)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
