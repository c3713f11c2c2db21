"""A gateway: discovery documents for kube-apiserver, key sets for anyone, services for users.

A request is forwarded only if kube-apiserver's front proxy states its user, and a SubjectAccessReview allows it. The
forwarded request carries a token for that one service. The log has neither token nor query.
Source: companion proposal 003; docs/decisions.md.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from prometheus_client import Counter, Gauge

from nodeattest_identity.addon.gateway.backends import EndpointResolver, SubjectAccessAuthorizer
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyWatcher, GatewayTls, UserInfo, identify
from nodeattest_identity.addon.gateway.keyset import Algorithm, KeyStore, RotationSchedule, mint_token
from nodeattest_identity.addon.gateway.redirects import replace_redirect, to_slash
from nodeattest_identity.addon.gateway.target import DOCUMENTS, parse, unavailable
from nodeattest_identity.issuer import documents as docs
from nodeattest_identity.proxy.forward import ForwardOptions
from nodeattest_identity.proxy.refusals import ProxyLimits, RefusalError
from nodeattest_identity.proxy.request import read_target
from nodeattest_identity.proxy.server import ProxyServer
from nodeattest_identity.serve import document_reply
from nodeattest_kube.client import ApiClient
from nodeattest_kube.periodic import RateLimiter
from nodeattest_serving.bounded_server import BindAddress, SettingsError
from nodeattest_serving.http_server import response
from nodeattest_serving.program import ProgramMetrics, run_server

DEFAULT_PROXY: Final = ProxyLimits(connections=400, upstream_connections=400)
"""Connections from kube-apiserver, one for each request in flight; and as many to services."""
_MIN_PERIOD: Final = 6 * 3600.0
_READ: Final = frozenset({"GET", "HEAD"})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """All settings."""

    address: BindAddress
    certificate: Path
    """The serving certificate and its chain; read again when the file changes."""
    key: Path
    issuer: str
    """``iss`` of the tokens, and the URL of their keys: sidecars compare it byte for byte."""
    namespace: str
    """Namespace of the Secret with the signing keys."""
    backend_ca: Path | None = None
    """CAs of services with HTTPS; None: the system's roots."""
    health: BindAddress | None = None
    algorithm: Algorithm = "ES256"
    schedule: RotationSchedule = field(default_factory=RotationSchedule)
    user_burst: int = 100
    """Requests of one user: pages load many things at once, and then few."""
    user_rate: float = 20.0
    """The same a second."""
    user_requests: int = 64
    """The same at once, websockets among them."""
    proxy: ProxyLimits = DEFAULT_PROXY

    def __post_init__(self) -> None:
        try:
            docs.issuer_url(self.issuer)
        except docs.UrlError as error:
            raise SettingsError(f"--issuer: {error}") from None
        if self.schedule.period < _MIN_PERIOD:
            raise SettingsError(
                f"--key-period: expected at least {_MIN_PERIOD:.0f} s, got {self.schedule.period:g}: a new key is "
                f"published for more than {docs.MAX_AGE} s before it signs"
            )


class Metrics(ProgramMetrics):
    """Counters of one gateway."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = Counter(
            "nodeattest_addon_gateway_requests",
            "Responses by kind of request (proxy, discovery, issuer) and status.",
            ("what", "code"),
            registry=self.registry,
        )
        self.minted = Counter("nodeattest_addon_gateway_tokens_minted", "Tokens signed.", registry=self.registry)
        self.open = Gauge("nodeattest_addon_gateway_requests_open", "Requests in flight.", registry=self.registry)
        self.keys = Gauge("nodeattest_addon_gateway_keys", "Published keys.", registry=self.registry)


class Gateway(ProxyServer):
    """Answers requests."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        tls: GatewayTls,
        authorizer: SubjectAccessAuthorizer,
        resolver: EndpointResolver,
        keys: KeyStore,
        metrics: Metrics,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``now`` is seconds since the epoch, ``clock`` monotonic seconds. Raises ``SettingsError``."""
        super().__init__(
            settings.address,
            tls.context,
            settings.proxy,
            user_requests=settings.user_requests,
            clock=clock,
            is_unauthenticated=tls.is_unauthenticated,
        )
        self._settings, self._metrics, self._now = settings, metrics, now
        self._front_proxy, self._authorizer, self._resolver, self._keys = tls, authorizer, resolver, keys
        self._backend_tls = _backend_tls(settings.backend_ca)
        self._buckets = RateLimiter(burst=settings.user_burst, per_second=settings.user_rate, clock=clock)
        self._jwks_uri = docs.default_jwks_uri(settings.issuer)
        self._configuration_path = urlsplit(docs.configuration_url(settings.issuer)).path
        self._issuer_paths = {self._configuration_path, urlsplit(self._jwks_uri).path}
        metrics.open.set_function(lambda: self.in_flight)
        metrics.keys.set_function(lambda: len(keys.published))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0].removesuffix("/")
        what = "issuer" if path in self._issuer_paths else "discovery" if path in DOCUMENTS else "proxy"
        try:
            if what == "issuer":
                answer: web.StreamResponse = self._document(request, path)
            elif what == "discovery":
                answer = self._discovery(request, path)
            else:
                answer = await self._proxy(request)
        except RefusalError as error:
            self.log_limited(f"{what} {error.reason}", f"refused {what}: {error}")
            answer = error.response()
        self._metrics.answers.labels(what, str(answer.status)).inc()
        return answer

    def _document(self, request: web.BaseRequest, path: str) -> web.Response:
        keys = self._keys.published
        if not keys:
            raise unavailable("the gateway has no signing key yet")
        published = docs.documents(self._settings.issuer, self._jwks_uri, keys)
        body, kind = published.jwks, docs.JWKS_TYPE
        if path == self._configuration_path:
            body, kind = published.configuration, docs.CONFIGURATION_TYPE
        headers = {"Content-Type": kind, "Cache-Control": f"public, max-age={docs.MAX_AGE}"}
        return response(document_reply(request, body, headers), last=False)

    def _discovery(self, request: web.BaseRequest, path: str) -> web.Response:
        self._identity(request)
        if request.method not in _READ:
            raise RefusalError(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET or HEAD", headers={"Allow": "GET, HEAD"})
        return web.Response(body=DOCUMENTS[path], content_type="application/json")

    def _identity(self, request: web.BaseRequest) -> UserInfo:
        trust = self._front_proxy.trust
        if trust is None:
            raise unavailable("no front proxy is known yet")
        return identify(trust, self._front_proxy.common_name(request.transport), request.headers.items())

    async def _proxy(self, request: web.BaseRequest) -> web.StreamResponse:
        """Forward a request to a service.

        1. kube-apiserver states the user. 2. The path names a service. 3. The user is within the limits. 4. The user is
        authorized. 5. A path without its slash leads to it. 6. The rest of the path is unambiguous. 7. There is an
        endpoint. 8. Mint a token and forward.
        """
        user = self._identity(request)  # 1
        target = parse(request.raw_path)  # 2
        # 3
        rate = self._settings.user_rate
        if not self._buckets.take(user.user):
            raise RefusalError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"expected at most {rate:g} requests a second of one user, got more",
                headers={hdrs.RETRY_AFTER: str(max(1, round(1 / rate)))},
            )
        with self.in_progress(user.user):
            await self._authorizer.authorize(user, target, request.method)  # 4
            if target.path is None:
                return to_slash(request, root=target.root)  # 5
            asked = read_target(target.path + (f"?{target.query}" if target.query else ""))  # 6
            endpoint = await self._resolver.resolve(target)  # 7
            # 8
            key = self._keys.signer(self._now())
            if key is None:
                raise unavailable("the gateway has no signing key yet")
            token = mint_token(key, self._settings.issuer, user, target.audience, now=self._now())
            self._metrics.minted.inc()
            log.info("forwarding %a to %s, key %s", user.user, target.audience, key.verifying.kid)
            is_tls = target.scheme == "https"
            options = ForwardOptions(
                upstream=endpoint,
                tls=self._backend_tls if is_tls else None,
                server_name=f"{target.service}.{target.namespace}.svc" if is_tls else None,
                target=asked,
                deadline=asyncio.get_running_loop().time() + self._settings.proxy.request_seconds,
                inject=((hdrs.AUTHORIZATION, f"Bearer {token}"),),
                replace=partial(replace_redirect, request=request, target=asked, root=target.root),
            )
            return await self.forwarder.forward(request, options)


def _backend_tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(
            f"--backend-ca-file: expected certificates in PEM, got {type(error).__name__}: {ca_file}"
        ) from None


async def run(settings: GatewaySettings, client: ApiClient) -> None:
    """Serve until cancelled; raises ``SettingsError``. It is ready once it has the front proxy's CA and a key."""
    now, clock = time.time, time.monotonic
    tls, metrics = GatewayTls(settings.certificate, settings.key, clock=clock), Metrics()
    async with client:
        trust = FrontProxyWatcher(client, tls, clock=clock)
        keys = KeyStore(client, settings.namespace, settings.schedule, settings.algorithm, now=now, clock=clock)
        gateway = Gateway(
            settings,
            tls=tls,
            authorizer=SubjectAccessAuthorizer(client, clock=clock),
            resolver=EndpointResolver(client, clock=clock),
            keys=keys,
            metrics=metrics,
            now=now,
            clock=clock,
        )
        checks = {"front-proxy": trust.unready_reason, "signing-keys": keys.unready_reason}
        await run_server(gateway, (trust.run, keys.run), health=settings.health, checks=checks, metrics=metrics)
