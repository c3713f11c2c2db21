"""Verifies callers by JWT or by TokenReview, and remembers verified tokens for a while.

By JWT (tokens of the gateway, or of service accounts for this add-on), the issuer and one of our audiences are always
required. A token is valid until its ``exp`` without leeway, because responses end then, too.
By TokenReview, the review always names our audiences, and the answer must name one of them: an API server that does not
support audiences answers without, and is not trusted. Only an explicit ``authenticated: true`` counts.
Either way a token with further audiences is refused: each of them could replay it here. A JWT states its audiences,
while a review names only those that were asked for; for a token that is no JWT the API server decides alone.
Source: companion proposal 003, "Properties of this token"; RFC 8725 §3; authentication.k8s.io/v1 TokenReview
("status.audiences"); pkg/serviceaccount/jwt.go (the audiences of an answer are those both of the token and of the
question); apiserver pkg/authentication/token/cache (keyed by HMAC, 10 s).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.sidecar.caller import Caller, Verifier
from nodeattest_identity.addon.sidecar.fair_semaphore import FairSemaphore
from nodeattest_identity.tokens import jwt
from nodeattest_identity.tokens.jwks_cache import JWKSCache
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_parsing import compact_jws
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject, JsonValue, ParseError
from nodeattest_providers.cloud_http import SingleFlight
from nodeattest_providers.errors import Denied, Reason, Unavailable

REVIEW_CACHE_SECONDS: Final = 10.0
"""Seconds that a TokenReview is cached, as in kube-apiserver: a revoked token stays valid for that long."""
JWT_CACHE_SECONDS: Final = 300.0
"""Seconds that a verified JWT is cached, if it lasts: a revoked key is noticed within this time."""
_RETRY: Final = 5.0
"""Seconds between two attempts to get the first keys; the cache limits requests to the issuer."""
_MAX_CACHED: Final = 10_000
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_JWT_REMEDY: Final = "ask for a new token, and set the clocks of both sides by NTP"
_REVIEW_REMEDY: Final = "ask for a token with this audience (kubectl create token --audience)"


class JwtVerifier:
    """Verifies by the keys of an issuer."""

    def __init__(self, keys: JWKSCache, *, issuer: str, longest_lifetime: float, now: Callable[[], float]) -> None:
        """``longest_lifetime``: seconds that a token may be valid for; ``now``: seconds since the epoch."""
        self._keys = keys
        self._issuer = issuer
        self._longest = longest_lifetime
        self._now = now

    async def verify(self, token: bytes, _peer: str, ours: frozenset[str], /) -> Caller:
        """Verify a token; raises ``Denied`` or ``Unavailable``."""
        unverified = jwt.parse(token)
        keys = await self._keys.keys_for(unverified.key_id)
        now = self._now()
        expected = jwt.Expected(
            issuer=self._issuer, audiences=ours, longest_lifetime=self._longest, single_audience=True
        )
        claims = jwt.verify(unverified, keys, expected, now)
        if claims.expires <= now:
            raise Denied(Reason.JWT_EXPIRED, expected="exp to come", got="one within the leeway", remedy=_JWT_REMEDY)
        groups = claims.extra.get("groups", [])
        if not isinstance(groups, list) or len(_strings(groups)) != len(groups):
            raise Denied(Reason.JWT_MALFORMED, expected="groups: a list of texts", got="another", remedy=_JWT_REMEDY)
        return Caller(
            user=claims.subject,
            groups=tuple(_strings(groups)),
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


class TokenReviewVerifier:
    """Verifies by TokenReview, with limited concurrency that is fair among peers; time limit is the client's (10 s)."""

    def __init__(self, client: ApiClient, *, semaphore: FairSemaphore | None = None) -> None:
        self._client = client
        self._semaphore = semaphore or FairSemaphore()

    async def verify(self, token: bytes, peer: str, ours: frozenset[str], /) -> Caller:
        """Verify a token; raises ``Denied`` or ``Unavailable``.

        1. A JWT has one audience. 2. The API server authenticates the token.
        """
        # 1: claims that nobody has verified yet; empty if it is no JWT
        claims: JsonObject = {}
        with suppress(ParseError):
            claims = compact_jws.parse_claims(compact_jws.split(token, max_size=len(token)).payload)
        if len(_strings(claims.get("aud"))) > 1:
            raise _denied("a token for one audience", "one for several")
        # 2
        spec: JsonObject = {"token": token.decode("ascii"), "audiences": [*sorted(ours)]}
        review: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        try:
            async with self._semaphore.acquire(peer):
                answer = await self._client.create(_TOKEN_REVIEWS, review)
        except ApiError as error:
            raise Unavailable(
                Reason.API_UNAVAILABLE,
                f"the API server did not review a token: {error.reason}",
                remedy="see whether the API server can be reached from this pod",
            ) from None
        expires = claims.get("exp")
        if isinstance(expires, bool) or not isinstance(expires, int | float):
            return parse_review(answer, ours, expires=None)
        return parse_review(answer, ours, expires=float(max(0, min(expires, 2**53))))  # a float holds no larger integer


def parse_review(answer: JsonObject, ours: frozenset[str], *, expires: float | None) -> Caller:
    """Return the caller of a TokenReview; raises ``Denied``.

    1. Authenticated, without an error. 2. One of our audiences, and no other. 3. A user name.
    """
    status = dig(answer, "status")
    # 1
    if dig(status, "authenticated") is not True or dig(status, "error"):
        raise _denied("authenticated true and no error", "another answer")
    # 2: kube-apiserver leaves audiences out where its authenticator knows none
    audiences = frozenset(_strings(dig(status, "audiences")))
    if not audiences or not audiences <= ours:
        raise _denied("an answer for one of our audiences", "one for others, or for none")
    # 3
    user = dig(status, "user", "username")
    if not isinstance(user, str) or not user:
        raise _denied("a user's name", "none")
    groups = tuple(_strings(dig(status, "user", "groups")))
    return Caller(user=user, groups=groups, audiences=audiences, expires=expires, key_id="TokenReview")


def _strings(value: JsonValue) -> list[str]:
    return [each for each in value if isinstance(each, str) and each] if isinstance(value, list) else []


def _denied(expected: str, got: str) -> Denied:
    return Denied(Reason.TOKEN_REVIEW_REFUSED, expected=expected, got=got, remedy=_REVIEW_REMEDY)


class CachedVerifier:
    """A verifier with a cache in front of it.

    A token is stored only as an HMAC under a key of this process, so memory never holds a usable token. An answer
    counts for ``keep`` seconds, not beyond the token's expiry, and only while one of its audiences is ours. A refusal
    is never cached. A token that is asked for several times at once is verified once.
    """

    def __init__(
        self,
        verifier: Verifier,
        audiences: Callable[[], frozenset[str]],
        *,
        keep: float,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``audiences`` returns those that are ours now; ``now``: seconds since the epoch, ``clock``: monotonic."""
        self._verifier = verifier
        self._audiences = audiences
        self._keep = keep
        self._secret = secrets.token_bytes(32)
        self._now = now
        self._clock = clock
        self._cache: ExpiringCache[bytes, Caller] = ExpiringCache(_MAX_CACHED, clock)
        self._in_flight: SingleFlight[bytes, Caller] = SingleFlight()

    async def caller(self, token: bytes, peer: str) -> Caller:
        """Return the caller of a token that came from ``peer``; raises ``Denied`` or ``Unavailable``."""
        ours = self._audiences()
        if not ours:
            raise Unavailable(
                Reason.API_UNAVAILABLE,
                "no audience is ours: no Service selects this pod",
                remedy="make a Service that selects it, or name the audience (--audience)",
            )
        key = hmac.digest(self._secret, token, "sha256")
        caller = self._cache.get(key)
        if caller is not None:
            if (caller.expires is None or caller.expires > self._now()) and not caller.audiences.isdisjoint(ours):
                return caller
            self._cache.remove(key)

        async def verify() -> Caller:
            started = self._clock()
            caller = await self._verifier.verify(token, peer, ours)
            self._cache.put(key, caller, started + self._keep)
            return caller

        return await self._in_flight.share(key, verify)

    def __len__(self) -> int:
        return len(self._cache)
