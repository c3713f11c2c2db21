"""A server of issuers' documents in this process, and a client that can say anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from polling import until
from proxy_kit import LOOPBACK, Answer, exchange

from nodeattest_identity.issuer.keys import VerifyingKey, verifying_key
from nodeattest_identity.serve import app
from nodeattest_identity.serve.app import KeysSource, ServeSettings
from nodeattest_identity.serve.clusters import KubeconfigSecretsSource
from nodeattest_kube.client import ApiClient
from nodeattest_serving.bounded_server import BindAddress
from nodeattest_serving.program import Ports


def new_key() -> VerifyingKey:
    return verifying_key(ec.generate_private_key(ec.SECP256R1()).public_key())


def pem(*keys: VerifyingKey) -> bytes:
    return b"".join(key.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in keys)


async def ask_until(condition: Callable[[Answer], bool], port: int, request: bytes) -> Answer:
    """Ask until the answer is as wanted."""
    last: list[Answer] = []

    async def wanted() -> Answer | None:
        last[:] = [await exchange(port, request)]
        return last[0] if condition(last[0]) else None

    return await until(wanted, "the answer", state=lambda: last)


@asynccontextmanager
async def serving(
    source: KeysSource | KubeconfigSecretsSource, connect: Callable[[], ApiClient], *, period: float = 1.0
) -> AsyncGenerator[Ports]:
    """Serve documents and health on loopback."""
    address = BindAddress(LOOPBACK, 0)
    settings = ServeSettings(address=address, health=address, source=source, period=period, max_stale=3600.0)
    ports: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(app.run(settings, connect, started=ports.set_result))
    await asyncio.wait({ports, task}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    if task.done():
        await task
    try:
        yield ports.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
