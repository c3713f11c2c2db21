"""The discovery front's one resource: cluster-info for whoever proves to know a token, signed with the same token.

Promises: an answer costs the API server nothing; whoever proves nothing learns nothing, not even which tokens exist;
no JWT is logged. Leaves to others: connections (``listener``), proof (``proof``), bytes (``replies``).
Source: companion proposal 000, "Implementation Flow".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_discovery import clusterinfo, jwt
from nodeattest_discovery.front import replies
from nodeattest_discovery.front.authenticate import authenticate, bearer_token
from nodeattest_discovery.front.cluster_cache import ClusterReader
from nodeattest_discovery.front.metrics import Metrics
from nodeattest_discovery.front.settings import FrontLimits
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.rate_limiter import RateLimiter
from nodeattest_providers.errors import Denied
from nodeattest_serving.replies import Reply, refusal

__all__ = ["DiscoveryService", "has_body"]

_log = logging.getLogger(__name__)

_NOBODY: Final = "none"
"""What the log says for a token where none was named."""


class DiscoveryService:
    """Answers ``GET`` of cluster-info."""

    def __init__(
        self,
        view: ClusterReader,
        *,
        limits: FrontLimits,
        audience: str | None,
        metrics: Metrics,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``now`` is seconds since the epoch, ``clock`` monotonic seconds."""
        self._view = view
        self._audience = audience
        self._metrics = metrics
        self._now = now
        self._clients = RateLimiter(burst=limits.client_burst, per_second=limits.client_rate, clock=clock)
        self._tokens = RateLimiter(burst=limits.token_burst, per_second=limits.token_rate, clock=clock)

    async def handle(self, request: web.BaseRequest, client: str) -> Reply:
        """Answer a request of a client."""
        reply = self._reply(request, client)
        self._metrics.answered("discovery", reply.status)
        return reply

    def _reply(self, request: web.BaseRequest, client: str) -> Reply:
        """Decide; 1 to 3 are ``_misdirected``.

        1. The client is within its limit. 2. There is one path and one verb. 3. One proof, no body.
        4. We know the cluster well enough. 5. The proof holds. 6. The token is within its limit: only whoever knows its
        secret can use that up.
        """
        refused = self._misdirected(request, client)
        if refused is not None:
            return refused
        # 4
        unready_reason = self._view.unready_reason()
        if unready_reason is not None:
            _log.warning("refused %s: %s", client, unready_reason)
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE)
        # 5
        token = self._proved(request.headers.get("Authorization", ""), client)
        if token is None:
            return refusal(HTTPStatus.UNAUTHORIZED)
        # 6
        if not self._tokens.take(token.id):
            return refusal(HTTPStatus.TOO_MANY_REQUESTS)
        return self._found(token, client)

    def _misdirected(self, request: web.BaseRequest, client: str) -> Reply | None:
        """Refuse what needs no look at any token."""
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

    def _proved(self, proof: str, client: str) -> BootstrapToken | None:
        named = _NOBODY
        try:
            unverified = jwt.parse(bearer_token(proof))
            named = unverified.token_id
            return authenticate(unverified, self._view.token, now=self._now(), audience=self._audience)
        except Denied as denied:
            _log.info("refused %s, token %s: expected %s, got %s", client, named, denied.expected, denied.got)
            return None

    def _found(self, token: BootstrapToken, client: str) -> Reply:
        config_map = self._view.cluster_info()
        if config_map is None:
            _log.warning("the cluster has no cluster-info for %s, token %s", client, token.id)
            return refusal(HTTPStatus.NOT_FOUND)
        reply = replies.found(config_map, token)
        _log.info("answered %s, token %s: %d", client, token.id, reply.status)
        return reply


def has_body(request: web.BaseRequest) -> bool:
    """Tell whether a request says that it has a body."""
    return request.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in request.headers
