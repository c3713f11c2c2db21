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
from typing import Final

from aiohttp import hdrs, web
from prometheus_client import Counter, Gauge

from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.gateway.endpoints import EndpointResolver
from nodeattest_identity.addon.gateway.errors import StatusError, status_response
from nodeattest_identity.addon.gateway.front_proxy import GatewayTls, UserInfo, identify
from nodeattest_identity.addon.gateway.keyset import Algorithm, RotationSchedule, mint_token
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
from nodeattest_identity.issuer.documents import MAX_AGE, UrlError, documents, issuer_url
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.proxy import refusals as proxy_refusals
from nodeattest_identity.proxy.forward import Forwarder, ForwardOptions
from nodeattest_identity.proxy.limits import ProxyLimits, UserRequests, refusal_lines
from nodeattest_identity.proxy.paths import read_target
from nodeattest_identity.serve.service import RouteTable, issuer_paths
from nodeattest_identity.tokens.jwt import SigningKey
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.periodic import RateLimiter
from nodeattest_providers.cloud_http import SingleFlight
from nodeattest_serving.bounded_server import BindAddress, SettingsError
from nodeattest_serving.http_server import response
from nodeattest_serving.program import ProgramMetrics

DEFAULT_PROXY: Final = ProxyLimits(connections=400, upstream_connections=400)
"""Connections from kube-apiserver, one for each request in flight; and as many to services."""
_MIN_PERIOD: Final = 6 * 3600.0
_ALLOWED_SECONDS: Final = 10.0
"""kube-apiserver itself decides each request anew, so this only bounds the second review."""
_DENIED_SECONDS: Final = 2.0
_MAX_CACHED: Final = 10_000
_READ: Final = frozenset({"GET", "HEAD"})
_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
"""requestinfo.go. Every other method becomes the empty verb, which only ``*`` allows."""

_log = logging.getLogger(__name__)

_Question = tuple[UserInfo, str, str, str]


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
            issuer_url(self.issuer)
        except UrlError as error:
            raise SettingsError(f"--issuer: {error}") from None
        if self.schedule.period < _MIN_PERIOD:
            raise SettingsError(
                f"--key-period: expected at least {_MIN_PERIOD:.0f} s, got {self.schedule.period:g}: a new key is "
                f"published for more than {MAX_AGE} s before it signs"
            )


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
            raise _unavailable("cannot ask the API server what this user may do") from None
        self._cache.put(question, allowed, self._clock() + (_ALLOWED_SECONDS if allowed else _DENIED_SECONDS))
        return allowed


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


class Gateway:
    """Answers requests."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        tls: GatewayTls,
        authorizer: SubjectAccessAuthorizer,
        resolver: EndpointResolver,
        signer: Callable[[float], SigningKey | None],
        published: Callable[[], tuple[VerifyingKey, ...]],
        forwarder: Forwarder,
        metrics: Metrics,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``signer`` returns the key that signs at a time, ``published`` the keys that are published now.

        ``now`` is seconds since the epoch, ``clock`` monotonic seconds. Raises ``SettingsError``.
        """
        self._settings = settings
        self._tls, self._authorizer, self._resolver = tls, authorizer, resolver
        self._signer, self._published, self._forwarder, self._now = signer, published, forwarder, now
        self._metrics = metrics
        self._backend_tls = _backend_tls(settings.backend_ca)
        self._buckets = RateLimiter(burst=settings.user_burst, per_second=settings.user_rate, clock=clock)
        self._requests = UserRequests(settings.user_requests)
        self._lines = refusal_lines(clock)
        self._issuer = issuer_paths(settings.issuer)
        self._routes = RouteTable(max_age=MAX_AGE, secure=False)
        self._routes.open(self._issuer)
        self._served: tuple[VerifyingKey, ...] = ()
        metrics.open.set_function(lambda: self._requests.total)
        metrics.keys.set_function(lambda: len(published()))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        path = request.raw_path.partition("?")[0].removesuffix("/")
        is_issuer = path in {self._issuer.configuration_path, self._issuer.jwks_path}
        what = "issuer" if is_issuer else "discovery" if path in DOCUMENTS else "proxy"
        try:
            if what == "issuer":
                answer: web.StreamResponse = self._document(request)
            elif what == "discovery":
                answer = self._discovery(request, path)
            else:
                answer = await self._proxy(request)
        except StatusError as refused:
            self._log_refusal(f"{what} {refused.status:d}", f"refused {what}: {refused.status:d} {refused.message}")
            answer = status_response(refused)
        except proxy_refusals.RefusalError as refused:
            self._log_refusal(f"{what} {refused.refusal}", f"refused {what}: {refused}")
            answer = proxy_refusals.answer(refused)
        self._metrics.answers.labels(what, str(answer.status)).inc()
        return answer

    def _log_refusal(self, kind: str, line: str) -> None:
        """Log a refusal, at level debug if there are too many of its kind."""
        _log.log(logging.INFO if self._lines.take(kind) else logging.DEBUG, "%s", line)

    def _document(self, request: web.BaseRequest) -> web.Response:
        """Answer with a document of the issuer, as ``issuer serve`` does."""
        keys = self._published()
        if keys != self._served:
            self._served = keys
            if keys:
                self._routes.publish(self._issuer, documents(self._issuer.issuer, self._issuer.jwks_uri, keys))
            else:
                self._routes.withdraw(self._issuer)
        return response(self._routes.answer(request), last=False)

    def _discovery(self, request: web.BaseRequest, path: str) -> web.Response:
        self._identity(request)
        if request.method not in _READ:
            raise StatusError(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET or HEAD", {"Allow": "GET, HEAD"})
        return web.Response(body=DOCUMENTS[path], content_type="application/json")

    def _identity(self, request: web.BaseRequest) -> UserInfo:
        trust = self._tls.trust
        if trust is None:
            raise _unavailable("no front proxy is known yet")
        return identify(trust, self._tls.common_name(request.transport), request.headers.items())

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
            raise StatusError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"expected at most {rate:g} requests a second of one user, got more",
                {hdrs.RETRY_AFTER: str(max(1, round(1 / rate)))},
            )
        with self._requests.hold(user.user):
            await self._authorizer.authorize(user, target, request.method)  # 4
            if target.path is None:
                return to_slash(request, root=target.root)  # 5
            asked = read_target(target.path + (f"?{target.query}" if target.query else ""))  # 6
            endpoint = await self._resolver.resolve(target)  # 7
            # 8
            key = self._signer(self._now())
            if key is None:
                raise _unavailable("the gateway has no signing key yet")
            token = mint_token(key, self._settings.issuer, user, target.audience, now=self._now())
            self._metrics.minted.inc()
            _log.info("forwarding %a to %s, key %s", user.user, target.audience, key.verifying.kid)
            is_tls = target.scheme == "https"
            options = ForwardOptions(
                host=endpoint.host,
                port=endpoint.port,
                tls=self._backend_tls if is_tls else None,
                server_name=f"{target.service}.{target.namespace}.svc" if is_tls else None,
                target=asked,
                deadline=asyncio.get_running_loop().time() + self._settings.proxy.request_seconds,
                inject=((hdrs.AUTHORIZATION, f"Bearer {token}"),),
                replace=partial(replace_redirect, request=request, target=asked, root=target.root),
            )
            return await self._forwarder.forward(request, options)


def _unavailable(message: str) -> StatusError:
    return StatusError(HTTPStatus.SERVICE_UNAVAILABLE, message, {hdrs.RETRY_AFTER: "5"})


def _backend_tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(
            f"--backend-ca-file: expected certificates in PEM, got {type(error).__name__}: {ca_file}"
        ) from None
