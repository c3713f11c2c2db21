"""Serves the OpenID documents of the gateway's own issuer, where sidecars get its keys.

Promises: the key set holds every key that signs, has signed within the last minutes or will sign next. Bytes, paths and
responses are those of ``issuer serve``.
Source: companion proposal 002.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web

from nodeattest_identity.issuer.documents import MAX_AGE, documents
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.serve.metrics import Metrics
from nodeattest_identity.serve.routes import RouteTable, issuer_paths
from nodeattest_identity.serve.service import IssuerService

__all__ = ["IssuerEndpoint"]


class IssuerEndpoint:
    """Answers requests for the issuer's documents."""

    def __init__(self, issuer: str, keys: Callable[[], tuple[VerifyingKey, ...]]) -> None:
        """``keys``: the keys that are published now; empty before the first read."""
        self._keys = keys
        self._published: tuple[VerifyingKey, ...] = ()
        self._paths = issuer_paths(issuer)
        self._routes = RouteTable(max_age=MAX_AGE, secure=False)
        self._routes.open(self._paths)
        self._service = IssuerService(self._routes, Metrics())
        self.paths: Final = frozenset({self._paths.configuration_path, self._paths.jwks_path})

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer a request for one of ``paths``."""
        keys = self._keys()
        if keys != self._published:
            if keys:
                self._routes.publish(self._paths, documents(self._paths.issuer, self._paths.jwks_uri, keys))
            else:
                self._routes.withdraw(self._paths)
            self._published = keys
        reply = await self._service.handle(request, "")
        response = web.Response(status=reply.status, body=reply.body, headers=reply.headers)
        response.headers["Server"] = "nodeattest"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
