"""The one resource of the discovery front: cluster-info for clients that know a token, signed with that token.

Promises: a request causes no read of the API server. An unauthenticated client learns nothing, not even which tokens
exist. No JWT is logged. The signed response is the final entity, without further encoding, because
``X-Kubernetes-JWS`` covers exactly these bytes.
Leaves to others: connections (``listener``), authentication (``authenticate``).
Source: companion proposal 000, "Implementation Flow" and "JWS content signing".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_discovery import clusterinfo, jws, jwt
from nodeattest_discovery.front.authenticate import authenticate, bearer_token
from nodeattest_discovery.front.cluster_cache import ClusterReader
from nodeattest_discovery.front.metrics import Metrics
from nodeattest_discovery.front.settings import FrontLimits
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.jsontypes import JsonObject, dig, dig_text
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_providers.errors import Denied
from nodeattest_serving.replies import Reply, refusal

__all__ = ["DiscoveryService", "has_body"]

_log = logging.getLogger(__name__)

_SIGNATURE: Final = "X-Kubernetes-JWS"

_UNKNOWN: Final = "none"
_LINES, _LINE_RATE = 50, 1.0
"""Log lines about refused requests of all clients at once, and a second after that; metrics count all of them."""
"""In the log if no token was named."""


class DiscoveryService:
    """Answers ``GET`` of cluster-info."""

    def __init__(
        self,
        cluster: ClusterReader,
        *,
        limits: FrontLimits,
        audience: str | None,
        metrics: Metrics,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``now`` is seconds since the epoch, ``clock`` monotonic seconds."""
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
        self._metrics.answered("discovery", reply.status)
        return reply

    def _reply(self, request: web.BaseRequest, client: str) -> Reply:
        """Decide; 1 to 3 are ``_check_request``.

        1. The client is within its limit. 2. There is one path and one method. 3. One Authorization header, no body.
        4. The informers are up to date. 5. The JWT is valid. 6. The token is within its limit: only clients that know
        its secret can use it up.
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
        """Refuse requests that need no check of a token."""
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
    if not dig_text(config_map, "data", clusterinfo.KUBECONFIG_KEY):
        return refusal(HTTPStatus.NOT_FOUND)
    names = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    shown: JsonObject = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {name: value for name in names if (value := dig(config_map, "metadata", name)) is not None},
        "data": dig(config_map, "data"),
    }
    body = _text(shown)
    return Reply(status=HTTPStatus.OK, body=body, headers={_SIGNATURE: jws.sign(body, token)})


def _text(value: JsonObject) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
