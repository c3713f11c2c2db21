"""Parses and answers TokenReviews of a kube-apiserver. Pure.

Promises: bytes give a ``TokenReview`` or ``Denied``. The holder of a valid JWT is ``nodeattest:discovery:<id>`` in
the group ``nodeattest:discovery``, and never anything of ``system:``. A JWT was sent to an unverified server and is
valid for two minutes: it must not be worth as much as the token itself.
Source: k8s.io/api authentication/v1 and v1beta1; apiserver plugin/pkg/authenticator/token/webhook.

The TokenReview webhook: lets a stock kube-apiserver authenticate the holder of a JWT as a reader of cluster-info.

Promises: an authenticated holder is always ``nodeattest:discovery:<id>`` (``tokenreview``); the checks are those of the
front. Other tokens, about which a kube-apiserver asks too, are neither logged nor stored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_discovery import jwt
from nodeattest_discovery.front.cluster_cache import ClusterReader
from nodeattest_discovery.front.service import Metrics, authenticate
from nodeattest_discovery.token import is_token_id
from nodeattest_kube.jsontypes import parse_json
from nodeattest_parsing.objects import dig, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason
from nodeattest_serving.replies import Reply, refusal

GROUP: Final = "nodeattest:discovery"
USER_PREFIX: Final = "nodeattest:discovery:"
MAX_BODY: Final = 64 * 1024
"""Bytes; a kube-apiserver takes headers of 1 MiB, but no token of ours is longer than 4 KiB."""
_GROUP_NAME: Final = "authentication.k8s.io"
_VERSIONS: Final = frozenset({f"{_GROUP_NAME}/v1", f"{_GROUP_NAME}/v1beta1"})
_MAX_VALUES: Final = 1000
_MAX_AUDIENCES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReview:
    """A question."""

    api_version: str
    token: bytes = field(repr=False)
    audiences: tuple[str, ...]
    """One of these must be the token's; empty: the API server's own, which it does not name."""


def parse(body: bytes) -> TokenReview:
    """Read a TokenReview; raises ``Denied``."""
    if len(body) > MAX_BODY:
        raise _malformed(f"at most {MAX_BODY} bytes", f"{len(body)}")
    try:
        document = parse_json(body, max_values=_MAX_VALUES)
    except ValueError:
        raise _malformed("a JSON object", "something else") from None
    version = text(document, "apiVersion")
    if document.get("kind") != "TokenReview" or version not in _VERSIONS:
        raise _malformed(f"TokenReview of {' or '.join(sorted(_VERSIONS))}", "another")
    token = text(document, "spec", "token")
    if not token:
        raise _malformed("spec.token", "none")
    return TokenReview(
        api_version=version, token=token.encode(), audiences=_audiences(dig(document, "spec", "audiences"))
    )


def suits(audience: str | None, wanted: Sequence[str]) -> bool:
    """Return whether a JWT's audience is among those that are asked for; a JWT without one is for its cluster only.

    The API server compares an answer without audiences with its own (TokenReviewStatus.audiences), so that a question
    for somebody else's is not answered by such a JWT.
    """
    return audience is None or not wanted or audience in wanted


def answer(review: TokenReview, token_id: str | None, audience: str | None = None) -> bytes:
    """Answer for the holder of a token; None: for nobody."""
    status: JsonObject = {"authenticated": False}
    if token_id is not None:
        if not is_token_id(token_id):
            raise ValueError("no id of a token")  # a name in Kubernetes is made of it
        status = {"authenticated": True, "user": {"username": USER_PREFIX + token_id, "groups": [GROUP]}}
        if audience is not None and audience in review.audiences:
            status["audiences"] = [audience]
    document: JsonObject = {"apiVersion": review.api_version, "kind": "TokenReview", "status": status}
    return json.dumps(document, separators=(",", ":")).encode()


def _audiences(value: JsonValue) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MAX_AUDIENCES:
        raise _malformed(f"spec.audiences: a list of at most {_MAX_AUDIENCES}", "something else")
    found = tuple(item for item in value if isinstance(item, str))
    if len(found) != len(value):
        raise _malformed("spec.audiences: texts", "something else")
    return found


def _malformed(expected: str, got: str) -> Denied:
    remedy = "send what kube-apiserver sends to --authentication-token-webhook-config-file"
    return Denied(Reason.DISCOVERY_REQUEST_REFUSED, expected=expected, got=got, remedy=remedy)


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
            review = parse(body)
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
            return answer(review, None)
        # 2
        if not suits(unverified.audience, review.audiences):
            _log.info("reviewed token %s: it is for another audience", token.id)
            return answer(review, None)
        _log.info("reviewed token %s: authenticated", token.id)
        return answer(review, token.id, unverified.audience)


async def _body(request: web.BaseRequest) -> bytes | None:
    """Read the body; None when it is too long. The connection's time limit bounds how long this takes."""
    kept = bytearray()
    async for chunk in request.content.iter_any():
        kept += chunk
        if len(kept) > MAX_BODY:
            return None
    return bytes(kept)
