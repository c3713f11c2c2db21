"""Mints a token for one user and one service, valid for a minute, and serves the keys that verify it.

A cached token is used again for the same user, UID, groups and service until ten seconds before its expiry. Bytes,
paths and responses of the documents are those of ``issuer serve``.
Source: companion proposal 002, and 003, "Properties of this token".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from aiohttp import web

from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.issuer.documents import MAX_AGE, documents
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.serve.service import IssuerService, Metrics, RouteTable, issuer_paths
from nodeattest_identity.tokens.jwt import SigningKey, mint
from nodeattest_parsing.values import JsonObject
from nodeattest_serving.replies import response

LIFETIME: Final = 60
"""Seconds; the longest that proposal 003 allows."""
GROUPS: Final = "groups"
UID: Final = "uid"
"""Claims besides the registered ones."""
_JTI_BYTES: Final = 16
_MARGIN: Final = 10
"""Seconds before its expiry from which a token is not used any more: the request is still on its way."""
_MAX_CACHED: Final = 10_000
_MAX_TOKEN: Final = 7_168
"""Bytes of a token; a header field may have 8190 in most servers, ours included."""

_Key = tuple[str, str, tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class CachedToken:
    """A token and its expiry."""

    token: str = field(repr=False)
    expires: int
    """Seconds since the epoch."""
    key_id: str


class TokenCache:
    """Mints tokens and caches them."""

    def __init__(
        self,
        issuer: str,
        signer: Callable[[float], SigningKey | None],
        *,
        now: Callable[[], float],
    ) -> None:
        """``now`` is seconds since the epoch; ``signer`` returns the signing key at a time."""
        self.minted = 0
        """For metrics."""
        self._issuer = issuer
        self._signer = signer
        self._now = now
        self._cache: ExpiringCache[_Key, CachedToken] = ExpiringCache(_MAX_CACHED, now)

    def token(self, user: UserInfo, audience: str, *, fresh: bool = False) -> CachedToken:
        """Return a token; raises ``StatusError``. ``fresh``: mint a new one.

        A request ends with its token, so one that lasts, or that writes, gets a token with its whole lifetime.
        """
        key = user.user, user.uid, user.groups, audience
        found = None if fresh else self._cache.get(key)
        if found is None:
            found = self._mint(user, audience, self._now())
            self._cache.put(key, found, found.expires - _MARGIN)
        return found

    def _mint(self, user: UserInfo, audience: str, now: float) -> CachedToken:
        key = self._signer(now)
        if key is None:
            raise StatusError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the gateway has no signing key yet", {"Retry-After": "5"}
            )
        more: JsonObject = {}
        if user.uid:
            more[UID] = user.uid
        if user.groups:
            more[GROUPS] = list(user.groups)
        token = mint(
            key,
            issuer=self._issuer,
            subject=user.user,
            audience=audience,
            now=now,
            lifetime=LIFETIME,
            jwt_id=secrets.token_urlsafe(_JTI_BYTES),
            extra=more,
        )
        if len(token) > _MAX_TOKEN:
            raise StatusError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"expected a name and groups that fit into a token of {_MAX_TOKEN} bytes, got {len(token)}",
            )
        self.minted += 1
        return CachedToken(token, int(now) + LIFETIME, key.verifying.kid)


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
        return response(await self._service.handle(request, ""), last=False)
