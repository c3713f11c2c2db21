"""A front in this process, over real TLS on loopback, and a client that can say anything to it."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from core_kit import JWT_NOW, TOKEN
from lying_servers import Ca as Authority

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.front import ClusterCache, DiscoveryService, FrontLimits, Metrics
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, encode, secret_name
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.values import JsonObject
from nodeattest_serving.bounded_server import BindAddress
from nodeattest_serving.program import Handler, Listener
from nodeattest_serving.tls import ServingCertificate

LOOPBACK: Final = "127.0.0.1"
_LIMIT: Final = 60.0
"""Seconds for one exchange."""


def secret_object(token: BootstrapToken = TOKEN, **changes: str | None) -> JsonObject:
    """Make the Secret of a token; ``changes`` replace entries, with ``_`` for ``-``, or leave them out."""
    expires = datetime.fromtimestamp(JWT_NOW, UTC) + timedelta(hours=1)
    data: JsonObject = {**encode(TokenSecret(token=token, expires=expires))}
    for name, value in changes.items():
        data[name.replace("_", "-")] = None if value is None else base64.b64encode(value.encode()).decode()
    kept: JsonObject = {name: value for name, value in data.items() if value is not None}
    metadata: JsonObject = {"name": secret_name(token.id), "namespace": "kube-system", "uid": "1"}
    return {"metadata": metadata, "type": SECRET_TYPE, "data": kept}


@dataclass
class KnownCluster(ClusterCache):
    """What a front knows of its cluster, without one."""

    secrets: dict[str, JsonObject] = field(default_factory=lambda: {TOKEN.id: secret_object()})
    config_map: JsonObject | None = None
    away: str | None = None
    asked: list[str] = field(default_factory=list[str])

    @classmethod
    def of(cls, authority: Authority, server: str = "https://10.0.0.1:6443") -> KnownCluster:
        """Make a cluster that has cluster-info."""
        kubeconfig = clusterinfo.build(server, authority.pem)
        metadata: JsonObject = {"name": "cluster-info", "namespace": "kube-public", "uid": "2", "resourceVersion": "7"}
        return cls(config_map={"metadata": metadata, "data": {"kubeconfig": kubeconfig}})

    def token(self, token_id: str) -> JsonObject | None:
        self.asked.append(token_id)
        return self.secrets.get(token_id)

    def cluster_info(self) -> JsonObject | None:
        return self.config_map

    def unready_reason(self) -> str | None:
        return self.away


@dataclass(frozen=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


def service(
    known: KnownCluster,
    *,
    limits: FrontLimits | None = None,
    audience: str | None = None,
    metrics: Metrics | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> DiscoveryService:
    """Make the service at the time of the JWTs of ``core_kit``."""
    return DiscoveryService(
        known,
        limits=limits or FrontLimits(),
        audience=audience,
        metrics=metrics or Metrics(),
        now=lambda: JWT_NOW,
        clock=clock,
    )


@asynccontextmanager
async def listening(
    handler: Handler,
    directory: Path,
    authority: Authority,
    *,
    limits: FrontLimits | None = None,
) -> AsyncGenerator[Listener]:
    """Listen on loopback."""
    certificate, key = authority.certify(directory)
    tls = ServingCertificate(certificate, key)
    listener = Listener(handler, BindAddress(LOOPBACK, 0), tls.context, limits or FrontLimits())
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


@asynccontextmanager
async def front(
    known: KnownCluster,
    directory: Path,
    authority: Authority,
    *,
    limits: FrontLimits | None = None,
    audience: str | None = None,
) -> AsyncGenerator[int]:
    """Run a front and give its port."""
    made = service(known, limits=limits, audience=audience)
    async with listening(made.handle, directory, authority, limits=limits) as listener:
        yield listener.port


async def ask(port: int, request: bytes, authority: Authority, client: tuple[Path, Path] | None = None) -> Answer:
    """Send bytes and read the answer to its end."""
    context = ssl.create_default_context(cadata=authority.pem.decode())
    if client is not None:
        context.load_cert_chain(*client)
    async with asyncio.timeout(_LIMIT):
        reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=context)
        writer.write(request)
        try:
            answer = await reader.read()
        finally:
            writer.close()
    if not answer:
        raise ConnectionError("the connection ended without an answer")
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return Answer(int(first.split()[1]), headers, body)


def get(*authorization: bytes, path: str = clusterinfo.PATH, more: bytes = b"") -> bytes:
    """Write a GET with these Authorization headers."""
    lines = b"".join(b"Authorization: %b\r\n" % value for value in authorization)
    return b"GET %b HTTP/1.1\r\nHost: front\r\n%b%b\r\n" % (path.encode(), lines, more)
