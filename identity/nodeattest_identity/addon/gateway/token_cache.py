"""Mints a token for one user and one service, valid for a minute, and caches it.

Promises: ``sub`` is the user verbatim, ``aud`` is one service. A cached token is used again for the same user, UID,
groups and service until ten seconds before its expiry. At most ``_MAX_CACHED`` tokens are cached.
Leaves to others: authorization (``authorizer``), keys (``keyset``), the form of the JWT (``tokens.signing``).
Source: companion proposal 003, "Properties of this token".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.tokens.signing import SigningKey, mint
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["GROUPS", "LIFETIME", "UID", "CachedToken", "TokenCache"]

LIFETIME: Final = 60
"""Seconds; the longest that proposal 003 allows."""
GROUPS: Final = "groups"
UID: Final = "uid"
"""Claims besides the registered ones."""
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
        jwt_id: Callable[[], str],
    ) -> None:
        """``now`` is seconds since the epoch; ``signer`` returns the signing key at a time; ``jwt_id`` a random id."""
        self.minted = 0
        """For metrics."""
        self._issuer = issuer
        self._signer = signer
        self._now = now
        self._jwt_id = jwt_id
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
            jwt_id=self._jwt_id(),
            extra=more,
        )
        if len(token) > _MAX_TOKEN:
            raise StatusError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"expected a name and groups that fit into a token of {_MAX_TOKEN} bytes, got {len(token)}",
            )
        self.minted += 1
        return CachedToken(token, int(now) + LIFETIME, key.verifying.kid)
