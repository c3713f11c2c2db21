"""The documents of the gateway's own issuer, where sidecars find the keys.

Promises: every key that signs, has signed within the last minutes or will sign next is in it; bytes, paths and answers
are those of ``issuer serve``.
Source: companion proposal 002.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web

from nodeattest_identity.issuer.documents import MAX_AGE, documents
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.serve.metrics import Metrics
from nodeattest_identity.serve.paths import issuer_paths
from nodeattest_identity.serve.routes import RouteTable
from nodeattest_identity.serve.service import IssuerService

__all__ = ["IssuerEndpoint"]


class IssuerEndpoint:
    """Answers for the issuer."""

    def __init__(self, issuer: str, keys: Callable[[], tuple[VerifyingKey, ...]]) -> None:
        """``keys``: what is published now; none where they were not read yet."""
        self._keys = keys
        self._shown: tuple[VerifyingKey, ...] = ()
        self._place = issuer_paths(issuer)
        self._site = RouteTable(max_age=MAX_AGE, secure=False)
        self._site.open(self._place)
        self._service = IssuerService(self._site, Metrics())
        self.paths: Final = frozenset({self._place.configuration_path, self._place.jwks_path})

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer a request for one of ``paths``."""
        keys = self._keys()
        if keys != self._shown:
            if keys:
                self._site.publish(self._place, documents(self._place.issuer, self._place.jwks_uri, keys))
            else:
                self._site.withdraw(self._place)
            self._shown = keys
        reply = await self._service.handle(request, "")
        response = web.Response(status=reply.status, body=reply.body, headers=reply.headers)
        response.headers["Server"] = "nodeattest"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
