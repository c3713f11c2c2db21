"""Verifies callers by TokenReview: the API server authenticates the token.

Promises: the review always names our audiences, and the answer must name one of them: an API server that does not
support audiences answers without, and is not trusted. Only an explicit ``authenticated: true`` counts. A token with
further audiences is refused: each of them could replay it here. A JWT states its audiences, while a review names only
those that were asked for; for a token that is no JWT the API server decides alone.
Leaves to others: caching and single-flight (``verifier_cache``).
Source: authentication.k8s.io/v1 TokenReview ("status.audiences"); pkg/serviceaccount/jwt.go (the audiences of an answer
are those both of the token and of the question); apiserver plugin/pkg/authenticator/token/webhook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodeattest_identity.addon.sidecar.caller import Caller
from nodeattest_identity.addon.sidecar.fair_semaphore import FairSemaphore
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.jsontypes import JsonObject, JsonValue, dig
from nodeattest_parsing import compact_jws
from nodeattest_parsing.errors import ParseError
from nodeattest_providers.errors import Denied, Reason, Unavailable

__all__ = ["TokenReviewVerifier", "parse_review"]

_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_VERIFIED_BY: Final = "TokenReview"
_REMEDY: Final = "ask for a token with this audience (kubectl create token --audience)"
_LATEST: Final = 2**53
"""Seconds; beyond it integers are not what a float can hold."""
"""Of a JWT."""


class TokenReviewVerifier:
    """Verifies by TokenReview, with limited concurrency that is fair among peers; time limit is the client's (10 s)."""

    def __init__(
        self, client: ApiClient, *, audiences: Callable[[], frozenset[str]], semaphore: FairSemaphore | None = None
    ) -> None:
        self._client = client
        self._audiences = audiences
        self._semaphore = semaphore or FairSemaphore()

    def audiences(self) -> frozenset[str]:
        """Return the audiences that are ours now."""
        return self._audiences()

    async def verify(self, token: bytes, peer: str = "", /) -> Caller:
        """Verify a token; raises ``Denied`` or ``Unavailable``.

        1. There is an audience that is ours. 2. A JWT has one audience. 3. The API server authenticates the token.
        """
        # 1
        ours = self._audiences()
        if not ours:
            raise _unavailable("no audience is ours: no Service selects this pod")
        # 2
        claims = _unverified_claims(token)
        if len(_strings(claims.get("aud"))) > 1:
            raise _denied("a token for one audience", "one for several")
        # 3
        spec: JsonObject = {"token": token.decode("ascii"), "audiences": [*sorted(ours)]}
        question: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        try:
            async with self._semaphore.acquire(peer):
                answer = await self._client.create(_PATH, question)
        except ApiError as error:
            raise _unavailable(f"the API server did not review a token: {error.reason}") from None
        return parse_review(answer, ours, expires=_expiry(claims))


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
    return Caller(user=user, groups=groups, audiences=audiences, expires=expires, key_id=_VERIFIED_BY)


def _unverified_claims(token: bytes) -> JsonObject:
    """Return the claims of a JWT, empty for others; they count only once the API server authenticated the token."""
    try:
        return compact_jws.parse_claims(compact_jws.split(token, max_size=len(token)).payload)
    except ParseError:
        return {}


def _expiry(claims: JsonObject) -> float | None:
    """Return the expiry of a token."""
    until = claims.get("exp")
    if not isinstance(until, int | float) or isinstance(until, bool):
        return None
    return float(max(0, min(until, _LATEST)))


def _strings(value: JsonValue) -> list[str]:
    return [each for each in value if isinstance(each, str) and each] if isinstance(value, list) else []


def _denied(expected: str, got: str) -> Denied:
    return Denied(Reason.TOKEN_REVIEW_REFUSED, expected=expected, got=got, remedy=_REMEDY)


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(Reason.API_UNAVAILABLE, detail, remedy="see whether the API server can be reached from this pod")
