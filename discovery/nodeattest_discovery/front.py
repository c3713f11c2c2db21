"""The discovery front: serves cluster-info to clients that know a token, signed with that token.

Requests are answered from memory. If the API server is unreachable, the last state counts for a bounded time. An
unauthenticated client learns nothing, not even which tokens exist: a bad JWT, an unknown token, a wrong signature, an
expired token and one without the usages take the same path with one MAC each, and end in one ``Denied``. No JWT is
logged. The response is not encoded further, because ``X-Kubernetes-JWS`` covers exactly these bytes.
Source: companion proposal 000, "JWT authentication", "Implementation Flow" and "JWS content signing"; RFC 6750 §2.1.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import Counter

from nodeattest_discovery import clusterinfo, informers, jws, jwt, secret
from nodeattest_discovery.jwt import Mac, UnverifiedJWT
from nodeattest_discovery.secret import TokenSecret
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.client import ApiClient
from nodeattest_kube.periodic import RateLimiter
from nodeattest_parsing.objects import dig, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits, SettingsError
from nodeattest_serving.http_server import Reply, refusal
from nodeattest_serving.program import Listener, ProgramMetrics, run_server
from nodeattest_serving.tls import ServingCertificate


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontLimits(ConnectionLimits):
    """Limits for each client, for each token, and for connections."""

    client_burst: int = 100
    client_rate: float = 10.0
    """Requests per second of one client address (or IPv6 /64). Many nodes may share one."""
    token_burst: int = 500
    token_rate: float = 50.0
    """Responses per second for one token. A pool of machines shares one."""


class Metrics(ProgramMetrics):
    """Counters of one front."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = Counter(
            "nodeattest_discovery_requests",
            "Responses by status.",
            ("code",),
            registry=self.registry,
        )
        self.turned_away = Counter(
            "nodeattest_discovery_connections_turned_away", "Connections over a limit.", registry=self.registry
        )

    def answered(self, status: HTTPStatus) -> None:
        """Count a response."""
        self._answers.labels(str(status.value)).inc()


TokenLookup = Callable[[str], Mapping[str, object] | None]
"""Returns the Secret of a token id."""

_DUMMY_TOKEN: Final = BootstrapToken("000000", "0" * 16)
_DUMMY_SECRET: Final[Mapping[str, object]] = {
    "metadata": {"name": secret.secret_name(_DUMMY_TOKEN.id)},
    "type": secret.SECRET_TYPE,
    "data": secret.encode(TokenSecret(token=_DUMMY_TOKEN, expires=datetime(9999, 1, 1, tzinfo=UTC))),
}
"""Evaluated if a Secret does not exist, so that this takes as long. ``jwt.verify`` never accepts its token."""
_REMEDY: Final = "check the token: kubeadm token list"


def bearer_token(header: str) -> bytes:
    """Return the token of an Authorization header. Raises ``Denied``."""
    scheme, _, rest = header.partition(" ")
    if scheme.lower() != "bearer" or not rest:
        raise Denied(
            Reason.DISCOVERY_REQUEST_REFUSED,
            expected="Authorization: Bearer <JWT>",
            got="another scheme" if header else "none",
            remedy="ask with a JWT, made with a bootstrap token",
        )
    return rest.encode("utf-8", "surrogateescape")


def authenticate(
    unverified: UnverifiedJWT, lookup: TokenLookup, *, now: float, audience: str | None = None, mac: Mac = jwt.hs256
) -> BootstrapToken:
    """Return the token that made a JWT. Raises ``Denied``.

    1. Evaluate the token's Secret, or a dummy: whether it may sign and authenticate.
    2. Verify the JWT (``jwt.verify``).
    3. Only then apply the result of 1.
    """
    # 1
    found = lookup(unverified.token_id)
    read = _DUMMY_SECRET if found is None else found
    moment = datetime.fromtimestamp(now, UTC)
    stored = secret.stored_token(read)
    signs = secret.signing_token(read, moment) is not None
    authenticates = secret.authenticating_groups(read, moment) is not None
    # 2
    jwt.verify(unverified, None if found is None else stored, now=now, audience=audience, mac=mac)
    # 3
    if stored is None or not (signs and authenticates):
        raise Denied(
            Reason.DISCOVERY_REQUEST_REFUSED,
            expected="a token that has not expired, with the usages signing and authentication",
            got="another",
            remedy=_REMEDY,
        )
    return stored


_log = logging.getLogger(__name__)

_SIGNATURE: Final = "X-Kubernetes-JWS"

_UNKNOWN: Final = "none"
"""In the log if the request named no token."""
_LINES, _LINE_RATE = 50, 1.0
"""Burst and rate (per second) of log lines about refused requests. Metrics count all requests."""


class DiscoveryService:
    """Answers ``GET`` of cluster-info."""

    def __init__(
        self,
        cluster: ClusterCache,
        *,
        limits: FrontLimits,
        audience: str | None,
        metrics: Metrics,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``now``: epoch seconds. ``clock``: monotonic seconds."""
        self._cluster = cluster
        self._audience = audience
        self._metrics = metrics
        self._now = now
        self._clients = RateLimiter(burst=limits.client_burst, per_second=limits.client_rate, clock=clock)
        self._lines = RateLimiter(burst=_LINES, per_second=_LINE_RATE, clock=clock)
        self._tokens = RateLimiter(burst=limits.token_burst, per_second=limits.token_rate, clock=clock)

    async def handle(self, request: web.BaseRequest, client: str) -> Reply:
        """Answer a request of a client."""
        reply = self._reply(request, client)
        self._metrics.answered(reply.status)
        return reply

    def _reply(self, request: web.BaseRequest, client: str) -> Reply:
        """Decide. ``_check_request`` does 1 to 3.

        1. The client is within its rate. 2. Path and method are the only ones served. 3. There is one Authorization
        header and no body. 4. The informers are up to date. 5. The JWT is valid. 6. The token is within its rate; only
        clients that know its secret can exhaust it.
        """
        refused = self._check_request(request, client)
        if refused is not None:
            return refused
        # 4
        unready_reason = self._cluster.unready_reason()
        if unready_reason is not None:
            if self._lines.take(""):
                _log.warning("refused %s: %s", client, unready_reason)
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE)
        # 5
        token = self._authenticate(request.headers.get("Authorization", ""), client)
        if token is None:
            return refusal(HTTPStatus.UNAUTHORIZED)
        # 6
        if not self._tokens.take(token.id):
            return refusal(HTTPStatus.TOO_MANY_REQUESTS)
        return self._respond(token, client)

    def _check_request(self, request: web.BaseRequest, client: str) -> Reply | None:
        # 1
        if not self._clients.take(client):
            return refusal(HTTPStatus.TOO_MANY_REQUESTS)
        # 2
        if request.raw_path.partition("?")[0] != clusterinfo.PATH:
            return refusal(HTTPStatus.NOT_FOUND)
        if request.method != "GET":
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET"})
        # 3
        proofs = request.headers.getall("Authorization", [])
        if len(proofs) > 1 or has_body(request) or any(len(proof) > jwt.MAX_SIZE for proof in proofs):
            return refusal(HTTPStatus.BAD_REQUEST)
        return None

    def _authenticate(self, proof: str, client: str) -> BootstrapToken | None:
        named = _UNKNOWN
        try:
            unverified = jwt.parse(bearer_token(proof))
            named = unverified.token_id
            return authenticate(unverified, self._cluster.token, now=self._now(), audience=self._audience)
        except Denied as denied:
            if self._lines.take(""):
                _log.info("refused %s, token %s: expected %s, got %s", client, named, denied.expected, denied.got)
            return None

    def _respond(self, token: BootstrapToken, client: str) -> Reply:
        config_map = self._cluster.cluster_info()
        if config_map is None:
            _log.warning("the cluster has no cluster-info for %s, token %s", client, token.id)
            return refusal(HTTPStatus.NOT_FOUND)
        reply = _signed_reply(config_map, token)
        _log.info("answered %s, token %s: %d", client, token.id, reply.status)
        return reply


def has_body(request: web.BaseRequest) -> bool:
    """Whether a request announces a body."""
    return request.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in request.headers


def _signed_reply(config_map: JsonObject, token: BootstrapToken) -> Reply:
    """Return cluster-info, signed with the client's token; 404 if it has no kubeconfig."""
    if not text(config_map, "data", clusterinfo.KUBECONFIG_KEY):
        return refusal(HTTPStatus.NOT_FOUND)
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    shown: JsonObject = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {name: value for name in names if (value := dig(config_map, "metadata", name)) is not None},
        "data": dig(config_map, "data"),
    }
    body = json.dumps(shown, separators=(",", ":"), ensure_ascii=False).encode()
    return Reply(status=HTTPStatus.OK, body=body, headers={_SIGNATURE: jws.sign(body, token)})


_MAX_TOKENS: Final = 20_000
_MAX_BYTES: Final = 64 << 20
"""Of tokens in memory."""

_MIN_STALE: Final = 120.0
"""Seconds; an idle API server sends a watch bookmark once a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSettings:
    """Settings of the front."""

    address: BindAddress
    certificate: Path
    """The serving certificate and its chain. Reloaded when the file changes."""
    key: Path
    audience: str | None = None
    """The cluster's identifier, if any. A JWT with another audience is refused."""
    max_stale: float = 300.0
    """Seconds for which the last state is served while the API server is unreachable."""
    health: BindAddress | None = None
    limits: FrontLimits = field(default_factory=FrontLimits)

    def __post_init__(self) -> None:
        if self.max_stale < _MIN_STALE:
            raise SettingsError(f"max-stale: expected at least {_MIN_STALE:.0f} s, got {self.max_stale:g}")


class ClusterCache:
    """The informers of one workload cluster."""

    def __init__(self, client: ApiClient, *, max_stale: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_stale = max_stale
        self._clock = clock
        self._tokens = informers.watch_tokens(
            client, _ignore, data_keys=None, max_objects=_MAX_TOKENS, max_bytes=_MAX_BYTES, clock=clock
        )
        self._info = informers.watch_cluster_info(client, _ignore, clock=clock)

    async def run(self) -> None:
        """Follow the cluster until canceled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tokens.run())
            group.create_task(self._info.run())

    def token(self, token_id: str) -> JsonObject | None:
        """Return the Secret of a token."""
        return self._tokens.get(f"{secret.NAMESPACE}/{secret.secret_name(token_id)}")

    def cluster_info(self) -> JsonObject | None:
        """Return the ConfigMap."""
        return self._info.get(f"{clusterinfo.NAMESPACE}/{clusterinfo.NAME}")

    def unready_reason(self) -> str | None:
        """Return why no request can be answered now, or None."""
        for what, reflector in (("tokens", self._tokens), ("cluster-info", self._info)):
            if not reflector.synced:
                return f"the {what} of the cluster were not read yet"
            if self._clock() - reflector.last_contact > self._max_stale:
                return f"no contact to the API server about {what} for more than {self._max_stale:.0f} s"
        return None


def _ignore(_key: str, _item: JsonObject | None) -> None:
    """Look-ups read the informers."""


async def run_front(
    settings: FrontSettings,
    client: ApiClient,
    *,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serve until canceled; raises ``SettingsError``."""
    view = ClusterCache(client, max_stale=settings.max_stale, clock=clock)
    metrics = Metrics()
    async with client:
        limits = settings.limits
        service = DiscoveryService(
            view, limits=limits, audience=settings.audience, metrics=metrics, now=now, clock=clock
        )
        tls = ServingCertificate(settings.certificate, settings.key, clock=clock)
        front = Listener(service.handle, settings.address, tls.context, limits)
        front.on_reject = metrics.turned_away.inc
        checks = {"informers": view.unready_reason}
        await run_server(front, (view.run,), health=settings.health, checks=checks, metrics=metrics)
