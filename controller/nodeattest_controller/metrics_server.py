"""Serves the metrics over HTTPS to whom the API server allows it.

TokenReview says who asks, SubjectAccessReview whether they may ``get`` ``/metrics``. Without an answer nobody reads
anything. A decision is kept for ten seconds at most, by an HMAC of the token; no token or user is logged. At most four
reviews are under way, two for one client, and equal tokens share one. Unknown tokens cause few reviews, by address and
in all, and take none from tokens and addresses that were allowed in the last hour.
Without a folder of certificates, one is self-signed at the start; its key touches no disk.
Source: controller-runtime pkg/metrics/filters (WithAuthenticationAndAuthorization); authentication.k8s.io/v1 and
authorization.k8s.io/v1; apiserver pkg/authorization/authorizerfactory/delegating.go.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from nodeattest_controller.logs import fields
from nodeattest_controller.settings import Settings
from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.sidecar.caller import bearer
from nodeattest_identity.addon.sidecar.fair_semaphore import FairSemaphore
from nodeattest_identity.proxy.headers import RawHeaders
from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_kube.access_review import review_access
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden
from nodeattest_kube.periodic import RateLimiter
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.cloud_http import SingleFlight
from nodeattest_providers.errors import Unavailable
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits
from nodeattest_serving.http_server import Listener, Reply, refusal
from nodeattest_serving.program import EXPOSITION, MetricsSource
from nodeattest_serving.tls import ServingCertificate, self_signed_context

METRICS_PATH: Final = "/metrics"
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_ALLOWED_SECONDS: Final = 10.0
"""How long a permission holds that was withdrawn; Prometheus asks every 30 seconds by default."""
_REFUSED_SECONDS: Final = 2.0
"""How long one is refused who got the right meanwhile."""
_MAX_CACHED: Final = 1024
_REVIEWS: Final = 4
_REVIEWS_OF_CLIENT: Final = 2
_MAX_WAITING: Final = 64
_MAX_WAIT: Final = 4.0
"""Seconds for a turn, and again for both reviews: Prometheus gives up after ten by default."""
_PEER_BURST: Final = 10
_PEER_RATE: Final = 1.0
"""Reviews a second of unknown tokens from one address: a scraper has a new token every hour at most."""
_ALL_BURST: Final = 20
_ALL_RATE: Final = 4.0
"""The same for all addresses that had no allowed token in the last hour."""
_KNOWN_SECONDS: Final = 3600.0
"""Kubelet renews a Pod's token after 48 minutes by default: its address is known then."""
_MAX_KNOWN: Final = 512
"""Tokens and addresses: only who may read the metrics adds one."""
_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}
_RETRY: Final = {"Retry-After": "5"}
_RETRY_LIMITED: Final = {"Retry-After": "1"}

_log = logging.getLogger(__name__)


class ScrapeRefusedError(Exception):
    """Nobody reads the metrics by this request; the message is for its sender."""

    def __init__(self, status: HTTPStatus, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class ScrapeAuthorizer:
    """Decides by the API server of a client."""

    def __init__(
        self, client: ApiClient, *, audiences: tuple[str, ...], secret: bytes, clock: Callable[[], float]
    ) -> None:
        """``audiences``: a token must be for one of them; empty: for the API server. ``secret`` keys the cache."""
        self._client = client
        self._audiences = audiences
        self._secret = secret
        self._clock = clock
        self._cache: ExpiringCache[bytes, HTTPStatus] = ExpiringCache(_MAX_CACHED, clock)
        self._known: ExpiringCache[bytes | str, bool] = ExpiringCache(_MAX_KNOWN, clock)
        """Tokens by HMAC, and addresses, that were allowed in the last hour."""
        self._of_peer = RateLimiter(burst=_PEER_BURST, per_second=_PEER_RATE, clock=clock)
        self._of_all = RateLimiter(burst=_ALL_BURST, per_second=_ALL_RATE, clock=clock, remembered=1)
        self._in_flight: SingleFlight[bytes, HTTPStatus] = SingleFlight()
        self._semaphore = FairSemaphore(
            limit=_REVIEWS, limit_of_peer=_REVIEWS_OF_CLIENT, max_waiting=_MAX_WAITING, timeout=_MAX_WAIT
        )
        self._trouble = ""
        """Why nobody can be reviewed, as it was logged last."""

    async def check(self, headers: RawHeaders, peer: str) -> None:
        """Return if the sender may read; raises ``ScrapeRefusedError``."""
        try:
            token = bearer(headers)
        except RefusalError as refused:
            raise ScrapeRefusedError(refused.status, refused.detail, refused.headers) from None
        key = hmac.digest(self._secret, token, "sha256")
        decision = self._cache.get(key)
        if decision is None:
            decision = await self._in_flight.share(key, lambda: self._decide(key, token, peer))
        if decision is HTTPStatus.UNAUTHORIZED:
            raise ScrapeRefusedError(decision, "expected a token that the API server authenticates", _CHALLENGE)
        if decision is HTTPStatus.FORBIDDEN:
            expected = f"expected the right to get {METRICS_PATH}: bind ClusterRole nodeattest:metrics-reader"
            raise ScrapeRefusedError(decision, expected, {})

    async def aclose(self) -> None:
        """End the reviews that are under way."""
        await self._in_flight.cancel()

    async def _decide(self, key: bytes, token: bytes, peer: str) -> HTTPStatus:
        known = self._take(key, peer)
        try:
            # Who asks with a known token does not wait for others behind the same address.
            async with self._semaphore.acquire(key.hex() if known else peer), asyncio.timeout(_MAX_WAIT):
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
        now, keep = self._clock(), _REFUSED_SECONDS
        if decision is HTTPStatus.OK:
            keep = _ALLOWED_SECONDS
            self._known.put(key, value=True, until=now + _KNOWN_SECONDS)
            self._known.put(peer, value=True, until=now + _KNOWN_SECONDS)
        else:
            self._known.remove(key)
        self._cache.put(key, decision, now + keep)
        return decision

    def _take(self, key: bytes, peer: str) -> bool:
        """Allow one review, and return whether the token is known; raises ``ScrapeRefusedError``.

        1. A known token has no limit but its turn. 2. Unknown ones share that of their address. 3. Unless an allowed
        token came from there, they share that of all addresses, too.
        """
        # 1
        if self._known.get(key):
            return True
        # 2: first, so that one address cannot use up the limit of all
        if not self._of_peer.take(peer):
            raise _too_many(f"{_PEER_RATE:g} unknown token a second from one address")
        # 3
        if not self._known.get(peer) and not self._of_all.take(None):
            raise _too_many(f"{_ALL_RATE:g} unknown tokens a second from all addresses")
        return False

    async def _review(self, token: bytes) -> HTTPStatus:
        """Ask the API server.

        1. The token is authenticated, without an error. 2. It is for one of our audiences. 3. It has a user's name.
        4. The user may.
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
        # 4
        allowed = await review_access(self._client, _access_spec(user))
        return HTTPStatus.OK if allowed else HTTPStatus.FORBIDDEN

    def _log_trouble(self, trouble: str) -> None:
        """Log it once until it changes: strangers can cause it as often as they like."""
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("cannot review who reads the metrics", extra=fields(error=trouble))


def _too_many(expected: str) -> ScrapeRefusedError:
    message = f"expected at most {expected}, got more: ask again in a second, and see who else sends tokens here"
    return ScrapeRefusedError(HTTPStatus.TOO_MANY_REQUESTS, message, _RETRY_LIMITED)


def _access_spec(user: JsonObject) -> JsonObject:
    spec: JsonObject = {"user": user["username"], "nonResourceAttributes": {"path": METRICS_PATH, "verb": "get"}}
    # What else the API server knows of the user is for its authorizers, as it said it.
    return spec | {name: user[name] for name in ("groups", "uid", "extra") if user.get(name)}


def _strings(value: JsonValue) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


_LIMITS: Final = ConnectionLimits(
    connections=64,
    connections_of_client=32,
    replaces_oldest=True,
    connection_seconds=600.0,
    idle_seconds=75.0,
)
"""Prometheus keeps its connection between two scrapes, 60 seconds by default at most."""
_SECRET: Final = 32


class SecureMetricsServer(Listener):
    """One address."""

    def __init__(self, settings: Settings, address: BindAddress, metrics: MetricsSource, client: ApiClient) -> None:
        """Take a client that may send whether this replica leads or not; raises ``SettingsError`` for its files."""
        super().__init__(self._reply, address, _context(settings), _LIMITS)
        self._metrics = metrics
        audiences, secret = settings.metrics_audiences, secrets.token_bytes(_SECRET)
        self._authorizer = ScrapeAuthorizer(client, audiences=audiences, secret=secret, clock=time.monotonic)

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        await super().stop()
        await self._authorizer.aclose()

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
    if settings.metrics_cert_dir is None:
        return self_signed_context(f"node-attestation-controller-metrics.{settings.namespace}.svc")
    folder = Path(settings.metrics_cert_dir)
    return ServingCertificate(folder / "tls.crt", folder / "tls.key").context
