"""Verifies callers by JWT: tokens of the gateway, or of service accounts for this add-on.

Promises: the issuer and one of our audiences are always required. A token is valid until its ``exp`` without leeway,
because responses end then, too. A token with further audiences is refused: each of them could replay it here.
Leaves to others: keys (``tokens.jwks_cache``), signatures (``tokens.jwt``).
Source: companion proposal 003, "Properties of this token"; RFC 8725 §3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nodeattest_identity.addon.sidecar.caller import Caller
from nodeattest_identity.tokens import jwt
from nodeattest_identity.tokens.jwks_cache import JWKSCache, KeySource
from nodeattest_identity.tokens.jwt import Claims, Expected
from nodeattest_kube.jsontypes import JsonValue
from nodeattest_providers.errors import Denied, Reason, Unavailable

__all__ = ["JwtVerifier", "first_keys"]

_GROUPS: Final = "groups"
_RETRY: Final = 5.0
"""Seconds between two attempts to get the first keys; the cache limits requests to the issuer."""
_REMEDY: Final = "ask for a new token, and set the clocks of both sides by NTP"


class JwtVerifier:
    """Verifies by the keys of an issuer."""

    def __init__(
        self,
        keys: KeySource,
        *,
        issuer: str,
        audiences: Callable[[], frozenset[str]],
        longest_lifetime: float,
        now: Callable[[], float],
    ) -> None:
        """``audiences`` may change while we run; ``longest_lifetime``: seconds that a token may be valid for."""
        self._keys = keys
        self._issuer = issuer
        self._audiences = audiences
        self._longest = longest_lifetime
        self._now = now

    def audiences(self) -> frozenset[str]:
        """Return the audiences that are ours now."""
        return self._audiences()

    async def verify(self, token: bytes, _peer: str = "", /) -> Caller:
        """Verify a token; raises ``Denied`` or ``Unavailable``."""
        ours = self._audiences()
        if not ours:
            raise Unavailable(
                Reason.API_UNAVAILABLE,
                "no audience is ours: no Service selects this pod",
                remedy="make a Service that selects it, or name the audience (--audience)",
            )
        unverified = jwt.parse(token)
        keys = await self._keys.keys_for(unverified.key_id)
        now = self._now()
        claims = jwt.verify(
            unverified,
            keys,
            Expected(issuer=self._issuer, audiences=ours, longest_lifetime=self._longest, single_audience=True),
            now,
        )
        if claims.expires <= now:
            raise Denied(Reason.JWT_EXPIRED, expected="exp to come", got="one within the leeway", remedy=_REMEDY)
        return Caller(
            user=claims.subject,
            groups=_groups(claims),
            audiences=ours.intersection(claims.audiences),
            expires=claims.expires,
            key_id=claims.key_id,
        )


async def first_keys(keys: JWKSCache) -> None:
    """Fetch keys before the first request, so that a sidecar is ready only once it can verify tokens."""
    while not keys.has_keys:
        with suppress(Denied, Unavailable):
            await keys.keys_for("")
        if not keys.has_keys:
            await asyncio.sleep(_RETRY)


def _groups(claims: Claims) -> tuple[str, ...]:
    """Read groups as the gateway writes them; raises ``Denied`` for anything else under that name."""
    given: JsonValue = claims.extra.get(_GROUPS, [])
    groups = tuple(each for each in given if isinstance(each, str) and each) if isinstance(given, list) else ()
    if not isinstance(given, list) or len(groups) != len(given):
        raise Denied(Reason.JWT_MALFORMED, expected="groups: a list of texts", got="something else", remedy=_REMEDY)
    return groups
