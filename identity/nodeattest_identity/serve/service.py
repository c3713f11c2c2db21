"""Responds to requests for issuers' documents.

Promises: responses are prepared, and no request causes a read. GET and HEAD, with or without a final slash; query and
``Accept`` are ignored (kube-apiserver refuses HEAD with 405, and ``Accept: application/json`` on the key set with 406,
which some relying parties send). Every other path is 404.
Source: Kubernetes pkg/routes/openidmetadata.go; RFC 9110 §8.8.3, §13.1.2 and §15.5.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_identity.serve.metrics import Metrics
from nodeattest_identity.serve.routes import RouteTable
from nodeattest_serving.replies import Reply, refusal

__all__ = ["IssuerService", "matches"]

_MAX_CONDITIONS: Final = 1024
"""Characters of ``If-None-Match`` that are read; an entity tag of ours has 18."""
_METHODS: Final = ("GET", "HEAD")
_REFUSED_METHOD: Final = refusal(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": ", ".join(_METHODS)})
_REFUSED_PATH: Final = refusal(HTTPStatus.NOT_FOUND)
_REFUSED_BODY: Final = refusal(HTTPStatus.BAD_REQUEST)
_NOT_YET: Final = refusal(HTTPStatus.SERVICE_UNAVAILABLE)


class IssuerService:
    """Responds from a route table."""

    def __init__(self, routes: RouteTable, metrics: Metrics) -> None:
        self._routes = routes
        self._metrics = metrics

    async def handle(self, request: web.BaseRequest, client: str) -> Reply:
        """Respond to a request; the client does not matter."""
        del client
        reply = self._reply(request)
        self._metrics.answered(reply.status)
        return reply

    def _reply(self, request: web.BaseRequest) -> Reply:
        """Decide.

        1. The path is a document's. 2. GET or HEAD. 3. No body. 4. The document exists. 5. The client does not have it.
        """
        # 1
        try:
            document = self._routes.find(request.raw_path.partition("?")[0])
        except KeyError:
            return _REFUSED_PATH
        # 2
        if request.method not in _METHODS:
            return _REFUSED_METHOD
        # 3
        if request.body_exists:
            return _REFUSED_BODY
        # 4
        if document is None:
            return _NOT_YET
        # 5
        if matches(document.etag, request.headers.getall("If-None-Match", [])):
            return document.unchanged
        return document.full


def matches(etag: str, conditions: Sequence[str]) -> bool:
    """Whether ``If-None-Match`` names this entity, by weak comparison (RFC 9110 §8.8.3.2).

    One of more bytes than a client has answers of ours to name counts for none: the whole document is right, too.
    """
    if len(conditions) > _MAX_CONDITIONS or sum(map(len, conditions)) > _MAX_CONDITIONS:
        return False
    for condition in conditions:
        for candidate in condition.split(","):
            if candidate.strip().removeprefix("W/") in {etag, "*"}:
                return True
    return False
