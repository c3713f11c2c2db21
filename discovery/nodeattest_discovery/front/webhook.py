"""The TokenReview webhook: lets a stock kube-apiserver authenticate the holder of a JWT as a reader of cluster-info.

Promises: an authenticated holder is always ``nodeattest:discovery:<id>`` (``tokenreview``); the checks are those of the
front. Other tokens, about which a kube-apiserver asks too, are neither logged nor stored.
Leaves to others: who may connect (``listener`` with a client CA, or loopback); the group's permissions (RBAC).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_discovery import jwt
from nodeattest_discovery.front import tokenreview
from nodeattest_discovery.front.authenticate import authenticate
from nodeattest_discovery.front.cluster_cache import ClusterReader
from nodeattest_discovery.front.metrics import Metrics
from nodeattest_discovery.front.tokenreview import TokenReview
from nodeattest_providers.errors import Denied
from nodeattest_serving.replies import Reply, refusal

__all__ = ["PATH", "TokenReviewService"]

PATH: Final = "/tokenreview"

_log = logging.getLogger(__name__)


class TokenReviewService:
    """Answers ``POST`` of TokenReviews."""

    def __init__(
        self, view: ClusterReader, *, audience: str | None, metrics: Metrics, now: Callable[[], float]
    ) -> None:
        self._view = view
        self._audience = audience
        self._metrics = metrics
        self._now = now

    async def handle(self, request: web.BaseRequest, client: str) -> Reply:
        """Answer a kube-apiserver."""
        reply = await self._reply(request, client)
        self._metrics.answered("webhook", reply.status)
        return reply

    async def _reply(self, request: web.BaseRequest, client: str) -> Reply:
        if request.raw_path.partition("?")[0] != PATH:
            return refusal(HTTPStatus.NOT_FOUND)
        if request.method != "POST":
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "POST"})
        body = await _body(request)
        if body is None:
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            review = tokenreview.parse(body)
        except Denied as denied:
            _log.warning("no TokenReview from %s: expected %s, got %s", client, denied.expected, denied.got)
            return refusal(HTTPStatus.BAD_REQUEST)
        unready_reason = self._view.unready_reason()
        if unready_reason is not None:
            _log.warning("refused to review a token: %s", unready_reason)
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE)
        return Reply(status=HTTPStatus.OK, body=self._answer(review))

    def _answer(self, review: TokenReview) -> bytes:
        """Say who a token's holder is.

        1. It is a JWT of ours: other bearers' tokens end here. 2. Its audience is asked for. 3. It is proved.
        """
        try:
            # 1
            unverified = jwt.parse(review.token)
            # 3, before 2, so that a wrong audience takes as long
            token = authenticate(unverified, self._view.token, now=self._now(), audience=self._audience)
        except Denied:
            return tokenreview.answer(review, None)
        # 2
        if not tokenreview.suits(unverified.audience, review.audiences):
            _log.info("reviewed token %s: it is for another audience", token.id)
            return tokenreview.answer(review, None)
        _log.info("reviewed token %s: authenticated", token.id)
        return tokenreview.answer(review, token.id, unverified.audience)


async def _body(request: web.BaseRequest) -> bytes | None:
    """Read the body; None when it is too long. The connection's time limit bounds how long this takes."""
    kept = bytearray()
    async for chunk in request.content.iter_any():
        kept += chunk
        if len(kept) > tokenreview.MAX_BODY:
            return None
    return bytes(kept)
