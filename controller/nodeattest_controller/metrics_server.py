"""Serves health over HTTP, and metrics, over HTTPS to clients that the API server allows if ``metricsSecure`` is set.

A TokenReview tells who asks, and a SubjectAccessReview whether they may ``get`` ``/metrics``. A decision is kept for
ten seconds at most, by an HMAC of the token. Each address has a rate limit, and so has each token that was allowed.
Source: controller-runtime pkg/metrics/filters (WithAuthenticationAndAuthorization).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from nodeattest_controller.logs import fields
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.settings import Settings
from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.sidecar.caller import bearer
from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_identity.proxy.request import RawHeaders
from nodeattest_kube.access_review import review_access
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden
from nodeattest_kube.periodic import RateLimiter
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Unavailable
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits, SettingsError
from nodeattest_serving.fair_semaphore import FairSemaphore
from nodeattest_serving.http_server import Reply, refusal
from nodeattest_serving.program import EXPOSITION, HealthCheck, HealthServer, Listener, ProgramMetrics
from nodeattest_serving.tls import ServingCertificate, self_signed_context

METRICS_PATH: Final = "/metrics"
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_KEPT_SECONDS: Final[Mapping[HTTPStatus, float]] = {
    HTTPStatus.OK: 10.0,
    HTTPStatus.UNAUTHORIZED: 2.0,
    HTTPStatus.FORBIDDEN: 2.0,
}
"""How long a decision is kept after the API server's answer changed."""
_MAX_CACHED: Final = 1024
_REVIEWS: Final = 4
_REVIEWS_OF_CLIENT: Final = 2
_MAX_WAITING: Final = 64
_MAX_WAIT: Final = 4.0
"""Seconds for a turn, and again for both reviews: Prometheus gives up after ten by default."""
BURST, RATE = 10, 1.0
"""Reviews of one address at once, and a second after that."""
_KNOWN_SECONDS: Final = 3600.0
"""Kubelet renews a Pod's token after 48 minutes by default."""
_RETRY: Final = {"Retry-After": "5"}
_LIMITS: Final = ConnectionLimits(
    connections=64,
    connections_of_client=32,
    connection_seconds=600.0,
    idle_seconds=75.0,
)
"""Prometheus keeps its connection between two scrapes, for 60 seconds by default."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HealthPorts:
    """The ports of health and metrics."""

    health: int
    metrics: int | None


@asynccontextmanager
async def serve_health(
    settings: Settings, metrics: Metrics, checks: Mapping[str, HealthCheck], client: ApiClient
) -> AsyncGenerator[HealthPorts]:
    """Serve for the length of the block; raises ``SettingsError`` if an address or a certificate cannot be used.

    ``client`` is of the management cluster, and reviews who reads secured metrics.
    """
    async with AsyncExitStack() as stack:
        health = HealthServer(settings.health_address, checks)
        await _start(health, "healthBindAddress", stack)
        scraped = None
        if settings.metrics_address is not None:
            address = settings.metrics_address
            if settings.metrics_secure:
                scraped = SecureMetricsServer(settings, address, metrics, client)
            else:
                scraped = HealthServer(address, None, metrics)
            await _start(scraped, "metricsBindAddress", stack)
        ports = HealthPorts(health.port, None if scraped is None else scraped.port)
        log_fields = fields(health_port=ports.health, metrics_port=ports.metrics)
        _log.info("serving health and metrics", extra=log_fields)
        yield ports


async def _start(server: HealthServer | SecureMetricsServer, field: str, stack: AsyncExitStack) -> None:
    try:
        await server.start()
    except SettingsError as error:
        raise SettingsError(f"{field}: {error}") from None
    stack.push_async_callback(server.stop)


class ScrapeRefusedError(Exception):
    """A request that may not read the metrics; the message is for its sender."""

    def __init__(self, status: HTTPStatus, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class ScrapeAuthorizer:
    """Decides who reads the metrics by reviews of an API server."""

    def __init__(self, client: ApiClient, *, audiences: tuple[str, ...], clock: Callable[[], float]) -> None:
        self._client = client
        self._audiences = audiences
        self._secret = secrets.token_bytes(32)
        self._clock = clock
        self._cache: ExpiringCache[bytes, HTTPStatus] = ExpiringCache(_MAX_CACHED, clock)
        self._known: ExpiringCache[bytes, bool] = ExpiringCache(_MAX_CACHED, clock)
        """Tokens, by HMAC, that were allowed in the last hour."""
        self._limiter = RateLimiter(burst=BURST, per_second=RATE, clock=clock)
        self._semaphore = FairSemaphore(
            limit=_REVIEWS, limit_of_peer=_REVIEWS_OF_CLIENT, max_waiting=_MAX_WAITING, timeout=_MAX_WAIT
        )
        self._trouble = ""

    async def check(self, headers: RawHeaders, peer: str) -> None:
        """Return if the sender may read; raises ``ScrapeRefusedError``."""
        try:
            token = bearer(headers)
        except RefusalError as refused:
            raise ScrapeRefusedError(refused.status, refused.detail, refused.headers) from None
        key = hmac.digest(self._secret, token, "sha256")
        decision = self._cache.get(key)
        if decision is None:
            # A known token has limits of its own: others behind the same address cannot lock it out.
            decision = await self._decide(token, key.hex() if self._known.get(key) else peer)
            now = self._clock()
            self._cache.put(key, decision, now + _KEPT_SECONDS[decision])
            if decision is HTTPStatus.OK:
                self._known.put(key, value=True, until=now + _KNOWN_SECONDS)
        if decision is HTTPStatus.UNAUTHORIZED:
            message = "expected a token that the API server authenticates"
            raise ScrapeRefusedError(decision, message, {"WWW-Authenticate": "Bearer"})
        if decision is HTTPStatus.FORBIDDEN:
            expected = f"expected the right to get {METRICS_PATH}: bind ClusterRole nodeattest:metrics-reader"
            raise ScrapeRefusedError(decision, expected, {})

    async def _decide(self, token: bytes, peer: str) -> HTTPStatus:
        if not self._limiter.take(peer):
            message = f"expected at most {RATE:g} review a second from one address, got more: try again in a second"
            raise ScrapeRefusedError(HTTPStatus.TOO_MANY_REQUESTS, message, {"Retry-After": "1"})
        try:
            async with self._semaphore.acquire(peer), asyncio.timeout(_MAX_WAIT):
                decision = await self._review(token)
        except Forbidden as error:
            self._log_trouble(f"{error.message}: apply manifests/metrics-auth")
            message = "the controller has no right to create TokenReviews or SubjectAccessReviews"
            raise ScrapeRefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, message, {}) from None
        except ApiError as error:
            self._log_trouble(f"{error.reason}: {error.message}")
            raise ScrapeRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "the API server cannot be asked", _RETRY) from None
        except TimeoutError:
            self._log_trouble(f"no answer within {_MAX_WAIT:g} s")
            raise ScrapeRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "the API server is too slow", _RETRY) from None
        except Unavailable:  # of the semaphore
            raise ScrapeRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many reviews at one time", _RETRY) from None
        self._trouble = ""
        return decision

    async def _review(self, token: bytes) -> HTTPStatus:
        """Ask the API server.

        1. The token is authenticated, without an error. 2. It is for one of our audiences. 3. It has a user's name.
        4. The user may read.
        """
        spec: JsonObject = {"token": token.decode("ascii")}
        if self._audiences:
            spec["audiences"] = [*self._audiences]
        question: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = dig(await self._client.create(_TOKEN_REVIEWS, question), "status")
        # 1
        if dig(status, "authenticated") is not True or dig(status, "error"):
            return HTTPStatus.UNAUTHORIZED
        # 2: an API server that does not know audiences answers without
        if self._audiences and not set(_strings(dig(status, "audiences"))) & set(self._audiences):
            return HTTPStatus.UNAUTHORIZED
        # 3
        user = dig(status, "user")
        if not isinstance(user, dict) or not isinstance(user.get("username"), str) or not user["username"]:
            return HTTPStatus.UNAUTHORIZED
        # 4: the authorizers get what the API server knows of the user, unchanged
        access: JsonObject = {"user": user["username"], "nonResourceAttributes": {"path": METRICS_PATH, "verb": "get"}}
        access |= {name: user[name] for name in ("groups", "uid", "extra") if user.get(name)}
        return HTTPStatus.OK if await review_access(self._client, access) else HTTPStatus.FORBIDDEN

    def _log_trouble(self, trouble: str) -> None:
        """Log it once until it changes: strangers can cause it as often as they like."""
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("cannot review who reads the metrics", extra=fields(error=trouble))


def _strings(value: JsonValue) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


class SecureMetricsServer(Listener):
    """Serves metrics at one address."""

    def __init__(self, settings: Settings, address: BindAddress, metrics: ProgramMetrics, client: ApiClient) -> None:
        super().__init__(self._reply, address, _context(settings), _LIMITS)
        self._metrics = metrics
        self._authorizer = ScrapeAuthorizer(client, audiences=settings.metrics_audiences, clock=time.monotonic)

    async def _reply(self, request: web.BaseRequest, client: str) -> Reply:
        if request.path != METRICS_PATH:
            return refusal(HTTPStatus.NOT_FOUND)
        if request.method != "GET":
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            await self._authorizer.check(request.raw_headers, client)
        except ScrapeRefusedError as refused:
            headers = {"Content-Type": "text/plain; charset=utf-8", **refused.headers}
            return Reply(status=refused.status, body=f"{refused}\n".encode(), headers=headers)
        return Reply(status=HTTPStatus.OK, body=self._metrics.render(), headers={"Content-Type": EXPOSITION})


def _context(settings: Settings) -> ssl.SSLContext:
    """Return a context of the mounted certificate, or of a self-signed one whose key touches no disk."""
    if settings.metrics_cert_dir is None:
        return self_signed_context(f"node-attestation-controller-metrics.{settings.namespace}.svc")
    folder = Path(settings.metrics_cert_dir)
    return ServingCertificate(folder / "tls.crt", folder / "tls.key").context
