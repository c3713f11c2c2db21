"""Runs a gateway: cluster state, listeners, and an orderly stop.

Promises: whatever was started is stopped when ``run`` ends, however it ends. It listens at once, and is ready when it
has read the front proxy's CA and a signing key. Leaves signals to the caller, who cancels.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from nodeattest_identity.addon.gateway.endpoints import ApiEndpointResolver, EndpointResolver
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyWatcher, GatewayTls
from nodeattest_identity.addon.gateway.keyset import KeyStore, generate_key
from nodeattest_identity.addon.gateway.metrics import Metrics
from nodeattest_identity.addon.gateway.service import Gateway, GatewayDeps, GatewaySettings, SubjectAccessAuthorizer
from nodeattest_identity.addon.gateway.tokens import IssuerEndpoint, TokenCache
from nodeattest_identity.proxy.forward import Forwarder
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_kube.client import ApiClient
from nodeattest_serving.bounded_server import SettingsError
from nodeattest_serving.health import HealthServer

_JTI_BYTES: Final = 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports that a gateway listens on; None: not enabled."""

    gateway: int
    health: int | None


async def run(
    settings: GatewaySettings,
    client: ApiClient,
    *,
    started: Callable[[Ports], None],
    resolver: EndpointResolver | None = None,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serve until cancelled; raises ``SettingsError``. ``started`` gets the ports as soon as all listen.

    ``resolver`` replaces the lookup of endpoints, for a gateway outside the cluster; None: ask the API server.
    """
    metrics = Metrics()
    tls = GatewayTls(settings.certificate, settings.key, clock=clock)
    backend_tls = _backend_tls(settings)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(client)
        trust = FrontProxyWatcher(client, tls.set_trust, clock=clock)
        key_store = KeyStore(
            client,
            namespace=settings.namespace,
            schedule=settings.schedule,
            make=partial(generate_key, settings.algorithm),
            now=now,
            clock=clock,
        )
        tokens = TokenCache(
            settings.issuer, key_store.signer, now=now, jwt_id=lambda: secrets.token_urlsafe(_JTI_BYTES)
        )
        deps = GatewayDeps(
            trust=lambda: trust.current,
            common_name=tls.common_name,
            authorizer=SubjectAccessAuthorizer(client, clock=clock),
            resolver=resolver or ApiEndpointResolver(client, clock=clock, pick=random.SystemRandom().choice),
            tokens=tokens,
            issuer_endpoint=IssuerEndpoint(settings.issuer, lambda: key_store.keyset.published),
            forwarder=await stack.enter_async_context(Forwarder(settings.proxy)),
            backend_tls=backend_tls,
            metrics=metrics,
        )
        gateway = Gateway(deps, limits=settings.limits, request_seconds=settings.proxy.request_seconds, clock=clock)
        metrics.watch(
            minted=lambda: tokens.minted,
            open_now=lambda: gateway.open_now,
            keys=lambda: len(key_store.keyset.keys),
        )
        server = _server(settings, tls, gateway)
        await server.start()
        stack.push_async_callback(server.stop)
        health = await _start_health(stack, settings, metrics, trust, key_store)
        ports = Ports(gateway=server.port, health=health)
        _log.info("serving the gateway on port %d, health on %s", ports.gateway, ports.health or "none")
        started(ports)
        async with asyncio.TaskGroup() as group:
            group.create_task(trust.run())
            group.create_task(key_store.run())


def _server(settings: GatewaySettings, tls: GatewayTls, gateway: Gateway) -> ProxyServer:
    return ProxyServer(
        gateway.handle,
        settings.address,
        tls.context,
        settings.proxy,
        is_unauthenticated=tls.is_unauthenticated,
    )


async def _start_health(
    stack: AsyncExitStack, settings: GatewaySettings, metrics: Metrics, trust: FrontProxyWatcher, key_store: KeyStore
) -> int | None:
    """Start the health server if it is enabled; returns its port."""
    if settings.health is None:
        return None
    reasons = {"front-proxy": trust.unready_reason, "signing-keys": key_store.unready_reason}
    health = HealthServer(settings.health, reasons, metrics)
    await health.start()
    stack.push_async_callback(health.stop)
    return health.port


def _backend_tls(settings: GatewaySettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.backend_ca)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(
            f"--backend-ca-file: expected certificates in PEM, got {type(error).__name__}: {settings.backend_ca}"
        ) from None
