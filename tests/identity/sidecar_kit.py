"""A sidecar in this process, before an upstream that keeps what it saw."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from proxy_kit import LOOPBACK, Seen
from token_kit import NOW, claims, elliptic, header, token

from nodeattest_identity.addon.sidecar.caller import Verifier
from nodeattest_identity.addon.sidecar.service import Metrics, SidecarService, SidecarSettings
from nodeattest_identity.addon.sidecar.verifiers import CachedVerifier, JwtVerifier
from nodeattest_identity.proxy.forward import Forwarder
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_identity.tokens.jwks_cache import StaticKeys
from nodeattest_serving.bounded_server import BindAddress

ISSUER: Final = "https://gateway.example"
AUDIENCE: Final = "kube-system/dashboard"


@dataclass
class Time:
    """What the sidecar takes for now."""

    now: float = float(NOW)

    def __call__(self) -> float:
        return self.now


@dataclass
class Running:
    """A sidecar that listens."""

    port: int
    service: SidecarService
    verified: CachedVerifier
    metrics: Metrics = field(repr=False)

    def count(self, name: str) -> float:
        """Read a counter of the metrics page by its name and label."""
        lines = self.metrics.render().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def users_token(user: str = "alice", *, lasts: float = 60, **changed: object) -> bytes:
    """Make a token of the gateway."""
    said = claims(issuer=ISSUER) | {"sub": user, "aud": AUDIENCE, "exp": NOW + lasts} | changed
    return token(elliptic(), header(elliptic()), said)


def authorization(given: bytes) -> str:
    """Write the header that carries a token."""
    return f"Authorization: Bearer {given.decode()}"


@asynccontextmanager
async def sidecar(
    seen: Seen,
    settings: SidecarSettings | None = None,
    *,
    verifier: Verifier | None = None,
    audiences: Callable[[], frozenset[str]] = lambda: frozenset({AUDIENCE}),
    time: Time | None = None,
    keep: float = 300.0,
    clock: Callable[[], float] = lambda: 0.0,
) -> AsyncGenerator[Running]:
    """Serve a sidecar at the time of the tokens."""
    time = time or Time()
    usual = settings or SidecarSettings(address=BindAddress(LOOPBACK, 0), upstream=BindAddress(LOOPBACK, 1))
    settings = replace(usual, upstream=BindAddress(LOOPBACK, seen.port))
    metrics = Metrics()
    if verifier is None:
        keys = StaticKeys((elliptic().verifying,))
        verifier = JwtVerifier(keys, issuer=ISSUER, longest_lifetime=3600.0, now=time)
    verified = CachedVerifier(verifier, audiences, keep=keep, secret=b"k" * 32, now=time, clock=clock)
    async with Forwarder(settings.limits) as forwarder:
        service = SidecarService(settings, verified, forwarder, metrics=metrics, now=time, clock=clock)
        server = ProxyServer(service.handle, settings.address, None, settings.limits, refused=metrics.refused)
        await server.start()
        try:
            yield Running(server.port, service, verified, metrics)
        finally:
            await server.stop()
