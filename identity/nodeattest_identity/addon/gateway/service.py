"""Answers requests: discovery documents for kube-apiserver, key sets for anyone, services for users.

A request is forwarded only if kube-apiserver's front proxy states its user, and a SubjectAccessReview allows it. That
review repeats kube-apiserver's own by our reading of the path: it closes every gap between the two readings, and every
way by which a front-proxy certificate reaches the gateway without kube-apiserver's authorizer. All aggregated API
servers do so. The forwarded request carries a token for that one service and no credential of the user's. Limits count
for each user alone. The log has user, service and decision, and neither token nor query; refusals cannot fill it.
Source: companion proposal 003; docs/decisions.md; authorization.k8s.io/v1 SubjectAccessReview; apiserver
pkg/authorization/authorizerfactory/delegating.go and pkg/endpoints/request/requestinfo.go.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol

from aiohttp import hdrs, web
from prometheus_client import Counter, Gauge

from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.gateway.endpoints import EndpointResolver
from nodeattest_identity.addon.gateway.errors import StatusError, status_response
from nodeattest_identity.addon.gateway.front_proxy import GatewayTls, UserInfo, identify
from nodeattest_identity.addon.gateway.keyset import Algorithm, RotationSchedule
from nodeattest_identity.addon.gateway.redirects import replace_redirect, to_slash
from nodeattest_identity.addon.gateway.target import (
    DOCUMENTS,
    GROUP,
    RESOURCE,
    SUBRESOURCE,
    VERSION,
    ServiceTarget,
    parse,
)
from nodeattest_identity.addon.gateway.tokens import IssuerEndpoint, TokenCache
from nodeattest_identity.issuer.documents import MAX_AGE, UrlError, issuer_url
from nodeattest_identity.proxy import refusals as proxy_refusals
from nodeattest_identity.proxy.forward import Forwarder, ForwardOptions, Upstream, sender_of
from nodeattest_identity.proxy.limits import ProxyLimits, UserRequests, refusal_lines
from nodeattest_identity.proxy.paths import read_target
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_providers.cloud_http import SingleFlight
from nodeattest_serving.bounded_server import BindAddress, SettingsError
from nodeattest_serving.health import CounterFunc
from nodeattest_serving.program import ProgramMetrics

DEFAULT_CONNECTIONS: Final = 400
"""From kube-apiserver, one for each request in flight; and as many to services."""
DEFAULT_PROXY: Final = ProxyLimits(connections=DEFAULT_CONNECTIONS, upstream_connections=DEFAULT_CONNECTIONS)

_MIN_PERIOD = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limits of one user: pages load many things at once, and then few."""

    user_burst: int = 100
    user_rate: float = 20.0
    """Requests a second."""
    user_requests: int = 64
    """At once, websockets among them."""


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
    limits: UserLimits = field(default_factory=UserLimits)
    proxy: ProxyLimits = DEFAULT_PROXY

    def __post_init__(self) -> None:
        try:
            issuer_url(self.issuer)
        except UrlError as error:
            raise SettingsError(f"--issuer: {error}") from None
        if self.schedule.period < _MIN_PERIOD:
            raise SettingsError(
                f"--key-period: expected at least {_MIN_PERIOD:.0f} s, got {self.schedule.period:g}: a new key is "
                f"published for more than {MAX_AGE} s before it signs"
            )


_ALLOWED_SECONDS: Final = 10.0
"""Seconds; kube-apiserver itself decides each request anew, so this only bounds the second review."""
_DENIED_SECONDS: Final = 2.0
_MAX_CACHED: Final = 10_000
_VERBS: Final = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
"""requestinfo.go. Every other method becomes the empty verb, which only ``*`` allows."""

_log = logging.getLogger(__name__)

_Question = tuple[UserInfo, str, str, str]


class SubjectAccessAuthorizer:
    """Authorizes by SubjectAccessReview; answers are cached for seconds."""

    def __init__(self, client: ApiClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._cache: ExpiringCache[_Question, bool] = ExpiringCache(_MAX_CACHED, clock)
        self._in_flight: SingleFlight[_Question, bool] = SingleFlight()

    async def authorize(self, user: UserInfo, target: ServiceTarget, method: str) -> None:
        """Raise ``StatusError`` unless the user is allowed."""
        question = user, target.namespace, target.name, _VERBS.get(method, "")
        allowed = self._cache.get(question)
        if allowed is None:
            allowed = await self._in_flight.share(question, lambda: self._review(question))
        if not allowed:
            raise StatusError(
                HTTPStatus.FORBIDDEN,
                f"expected a right to {question[3] or '*'} {RESOURCE}/{SUBRESOURCE} of {GROUP} here, got none",
            )

    async def _review(self, question: _Question) -> bool:
        user, namespace, name, verb = question
        attributes = ResourceAttributes(
            group=GROUP,
            version=VERSION,
            resource=RESOURCE,
            subresource=SUBRESOURCE,
            namespace=namespace,
            name=name,
            verb=verb,
        )
        who = ReviewedUser(name=user.user, groups=user.groups, uid=user.uid, extra=dict(user.extra))
        try:
            allowed = await is_access_allowed(self._client, attributes, who)
        except ApiError as error:
            _log.warning("cannot create a SubjectAccessReview: %s", error)
            raise StatusError(
                HTTPStatus.SERVICE_UNAVAILABLE, "cannot ask the API server what this user may do", {"Retry-After": "2"}
            ) from None
        self._cache.put(question, allowed, self._clock() + (_ALLOWED_SECONDS if allowed else _DENIED_SECONDS))
        return allowed


_READ: Final = frozenset({"GET", "HEAD"})


class Authorizer(Protocol):
    """Decides whether a user may use a service."""

    async def authorize(self, user: UserInfo, target: ServiceTarget, method: str) -> None:
        """Raise ``StatusError`` unless the user is allowed."""
        ...


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
        self.minted = CounterFunc("nodeattest_addon_gateway_tokens_minted", "Tokens signed.", registry=self.registry)
        self.open = Gauge("nodeattest_addon_gateway_requests_open", "Requests in flight.", registry=self.registry)
        self.keys = Gauge("nodeattest_addon_gateway_keys", "Published keys.", registry=self.registry)


@dataclass(kw_only=True)
class Gateway:
    """Answers requests."""

    tls: GatewayTls
    authorizer: Authorizer
    resolver: EndpointResolver
    tokens: TokenCache
    issuer_endpoint: IssuerEndpoint
    forwarder: Forwarder
    backend_tls: ssl.SSLContext
    metrics: Metrics
    limits: UserLimits
    request_seconds: float
    """Any response and any WebSocket ends after them."""
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._buckets = RateLimiter(burst=self.limits.user_burst, per_second=self.limits.user_rate, clock=self.clock)
        self._requests = UserRequests(self.limits.user_requests)
        self._lines = refusal_lines(self.clock)

    @property
    def open_now(self) -> int:
        """Number of requests in flight."""
        return self._requests.total

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        path = request.raw_path.partition("?")[0]
        plain = path.removesuffix("/")
        what = "issuer" if plain in self.issuer_endpoint.paths else "discovery" if plain in DOCUMENTS else "proxy"
        try:
            if what == "issuer":
                answer: web.StreamResponse = await self.issuer_endpoint.answer(request)
            elif what == "discovery":
                answer = self._discovery(request, plain)
            else:
                answer = await self._proxy(request)
        except StatusError as refused:
            self._log_refusal(f"{what} {refused.status:d}", f"refused {what}: {refused.status:d} {refused.message}")
            answer = status_response(refused)
        except proxy_refusals.RefusalError as refused:
            self._log_refusal(f"{what} {refused.refusal}", f"refused {what}: {refused}")
            answer = proxy_refusals.answer(refused)
        self.metrics.answers.labels(what, str(answer.status)).inc()
        return answer

    def _log_refusal(self, kind: str, line: str) -> None:
        """Log a refusal, at level debug if there are too many of its kind."""
        _log.log(logging.INFO if self._lines.take(kind) else logging.DEBUG, "%s", line)

    def _identity(self, request: web.BaseRequest) -> UserInfo:
        trust = self.tls.trust
        if trust is None:
            raise StatusError(HTTPStatus.SERVICE_UNAVAILABLE, "no front proxy is known yet", {"Retry-After": "5"})
        return identify(trust, self.tls.common_name(request.transport), request.headers.items())

    def _discovery(self, request: web.BaseRequest, path: str) -> web.Response:
        self._identity(request)
        if request.method not in _READ:
            raise StatusError(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET or HEAD", {"Allow": "GET, HEAD"})
        return web.Response(body=DOCUMENTS[path], content_type="application/json")

    async def _proxy(self, request: web.BaseRequest) -> web.StreamResponse:
        """Forward a request to a service.

        1. kube-apiserver states the user. 2. The path names a service. 3. The user is within the limits. 4. The user is
        authorized. 5. A path without its slash leads to it. 6. The rest of the path is unambiguous. 7. There is an
        endpoint. 8. Mint a token and forward.
        """
        identity = self._identity(request)  # 1
        target = parse(request.raw_path)  # 2
        # 3
        if not self._buckets.take(identity.user):
            raise StatusError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"expected at most {self.limits.user_rate:g} requests a second of one user, got more",
                {hdrs.RETRY_AFTER: str(max(1, round(1 / self.limits.user_rate)))},
            )
        with self._requests.hold(identity.user):
            return await self._forward(request, identity, target)

    async def _forward(self, request: web.BaseRequest, identity: UserInfo, target: ServiceTarget) -> web.StreamResponse:
        """Do the steps 4 to 8 of ``_proxy``."""
        await self.authorizer.authorize(identity, target, request.method)  # 4
        if target.path is None:
            return to_slash(request, root=target.root)  # 5
        asked = read_target(target.path + (f"?{target.query}" if target.query else ""))  # 6
        endpoint = await self.resolver.resolve(target)  # 7
        streams = hdrs.UPGRADE in request.headers or "text/event-stream" in request.headers.get(hdrs.ACCEPT, "")
        lasting = streams or request.can_read_body  # who sends a body twice because an answer was lost writes twice
        minted = self.tokens.token(identity, target.audience, fresh=lasting)  # 8
        _log.info("forwarding %a to %s, key %s", identity.user, target.audience, minted.key_id)
        options = ForwardOptions(
            upstream=Upstream(
                host=endpoint.host,
                port=endpoint.port,
                tls=self.backend_tls if target.scheme == "https" else None,
                server_name=f"{target.service}.{target.namespace}.svc" if target.scheme == "https" else None,
            ),
            target=asked,
            deadline=asyncio.get_running_loop().time() + self.request_seconds,
            sender=sender_of(request),
            inject=((hdrs.AUTHORIZATION, f"Bearer {minted.token}"),),
            replace=partial(replace_redirect, request=request, target=asked, root=target.root),
        )
        return await self.forwarder.forward(request, options)
