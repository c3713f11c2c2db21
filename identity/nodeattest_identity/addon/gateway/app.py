"""Runs a gateway: cluster state and listeners.

It listens at once, and is ready when it has read the front proxy's CA and a signing key.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nodeattest_identity.addon.gateway.endpoints import EndpointResolver
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyWatcher, GatewayTls
from nodeattest_identity.addon.gateway.keyset import KeyStore
from nodeattest_identity.addon.gateway.service import Gateway, GatewaySettings, Metrics, SubjectAccessAuthorizer
from nodeattest_identity.proxy.forward import Forwarder
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_kube.client import ApiClient
from nodeattest_serving.program import HealthServer, Ports, run_server


async def run(settings: GatewaySettings, client: ApiClient, *, started: Callable[[Ports], None]) -> None:
    """Serve until cancelled; raises ``SettingsError``. ``started`` gets the ports as soon as all listen."""
    now, clock = time.time, time.monotonic
    tls = GatewayTls(settings.certificate, settings.key, clock=clock)
    async with client, Forwarder(settings.proxy) as forwarder:
        trust = FrontProxyWatcher(client, tls, clock=clock)
        keys = KeyStore(client, settings.namespace, settings.schedule, settings.algorithm, now=now, clock=clock)
        metrics = Metrics()
        gateway = Gateway(
            settings,
            tls=tls,
            authorizer=SubjectAccessAuthorizer(client, clock=clock),
            resolver=EndpointResolver(client, clock=clock),
            signer=keys.signer,
            published=lambda: keys.keyset.published,
            forwarder=forwarder,
            metrics=metrics,
            now=now,
            clock=clock,
        )
        server = ProxyServer(
            gateway.handle, settings.address, tls.context, settings.proxy, is_unauthenticated=tls.is_unauthenticated
        )
        health = None
        if settings.health is not None:
            reasons = {"front-proxy": trust.unready_reason, "signing-keys": keys.unready_reason}
            health = HealthServer(settings.health, reasons, metrics)
        await run_server(server, health, (trust.run, keys.run), started)
