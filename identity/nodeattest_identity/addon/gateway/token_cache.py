"""Tokens that tell one service who one user is, for a minute at most.

Promises: ``sub`` is the user verbatim, ``aud`` one service; a token is used again for the same user, UID, groups and
service, and no longer than ten seconds before its end; no more than ``_MOST`` are remembered.
Leaves to others: who may have one (``service``), keys (``keyset``), what a token looks like (``tokens.minting``).
Source: companion proposal 003, "Properties of this token".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

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
_SPARE: Final = 10
"""Seconds before its end at which a token is not handed out any more: it has yet to arrive."""
_MOST: Final = 10_000
_LONGEST: Final = 7_168
"""Bytes of a token; a header field may have 8190 in most servers, ours included."""

_Who = tuple[str, str, tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class CachedToken:
    """A token and its end."""

    token: str = field(repr=False)
    expires: int
    """Seconds since the epoch."""
    key_id: str


class TokenCache:
    """Makes tokens and remembers them."""

    def __init__(
        self,
        issuer: str,
        signer: Callable[[float], SigningKey | None],
        *,
        now: Callable[[], float],
        jwt_id: Callable[[], str],
    ) -> None:
        """``now`` is seconds since the epoch; ``signer`` gives the key for a moment; ``jwt_id`` a random name."""
        self.minted = 0
        """For metrics."""
        self._issuer = issuer
        self._signer = signer
        self._now = now
        self._jwt_id = jwt_id
        self._kept: OrderedDict[_Who, CachedToken] = OrderedDict()

    def token(self, identity: UserInfo, audience: str, *, fresh: bool = False) -> CachedToken:
        """Return a token; raises ``StatusError``. ``fresh``: one that was not used before.

        A websocket ends with its token, so it gets all of it.
        """
        now = self._now()
        who = identity.user, identity.uid, identity.groups, audience
        found = self._kept.get(who)
        if found is None or fresh or now >= found.expires - _SPARE:
            found = self._kept[who] = self._mint(identity, audience, now)
        self._kept.move_to_end(who)
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return found

    def _mint(self, identity: UserInfo, audience: str, now: float) -> CachedToken:
        key = self._signer(now)
        if key is None:
            raise StatusError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the gateway has no signing key yet", {"Retry-After": "5"}
            )
        more: JsonObject = {}
        if identity.uid:
            more[UID] = identity.uid
        if identity.groups:
            more[GROUPS] = list(identity.groups)
        token = mint(
            key,
            issuer=self._issuer,
            subject=identity.user,
            audience=audience,
            now=now,
            lifetime=LIFETIME,
            jwt_id=self._jwt_id(),
            extra=more,
        )
        if len(token) > _LONGEST:
            raise StatusError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"expected a user whose name and groups fit into a token of {_LONGEST} bytes, got one of {len(token)}",
            )
        self.minted += 1
        return CachedToken(token, int(now) + LIFETIME, key.verifying.kid)
