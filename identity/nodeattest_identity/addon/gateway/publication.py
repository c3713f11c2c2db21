"""The documents of the gateway's own issuer, where sidecars find the keys.

Promises: every key that signs, has signed within the last minutes or will sign next is in it; the documents are those
of ``issuer.documents``, at the same paths as kube-apiserver's.
Source: companion proposal 002; RFC 9110 §8.8.3 and §13.1.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from nodeattest_identity.addon.gateway.refusals import Refused
from nodeattest_identity.issuer.documents import CONFIGURATION_TYPE, JWKS_TYPE, MAX_AGE, Documents, documents
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.issuer.urls import JWKS_PATH, configuration_url

__all__ = ["Publication"]

_READ: Final = frozenset({"GET", "HEAD"})


class Publication:
    """Answers for the issuer."""

    def __init__(self, issuer: str, keys: Callable[[], tuple[VerifyingKey, ...]]) -> None:
        self._issuer = issuer
        self._jwks_uri = issuer.removesuffix("/") + JWKS_PATH
        self._keys = keys
        self._jwks = urlsplit(self._jwks_uri).path
        self._made: Documents | None = None
        self.paths: Final = frozenset({urlsplit(configuration_url(issuer)).path, self._jwks})

    def answer(self, request: web.BaseRequest, path: str) -> web.Response:
        """Answer a GET or HEAD of one of ``paths``; raises ``Refused``."""
        if request.method not in _READ:
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET or HEAD", {"Allow": "GET, HEAD"})
        made = self._documents()
        is_keys = path == self._jwks
        body = made.jwks if is_keys else made.configuration
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {hdrs.CACHE_CONTROL: f"public, max-age={MAX_AGE}", hdrs.ETAG: tag, hdrs.SERVER: "nodeattest"}
        if tag in {each.strip().removeprefix("W/") for each in request.headers.get(hdrs.IF_NONE_MATCH, "").split(",")}:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        headers[hdrs.CONTENT_TYPE] = JWKS_TYPE if is_keys else CONFIGURATION_TYPE
        return web.Response(body=body, headers=headers)

    def _documents(self) -> Documents:
        keys = self._keys()
        if not keys:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the gateway has no signing key yet", {"Retry-After": "5"})
        if self._made is None or self._made.keys != keys:
            self._made = documents(self._issuer, self._jwks_uri, keys)
        return self._made
