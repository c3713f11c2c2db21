"""Callers by TokenReview: the API server says whose token it is.

Promises: our audiences are always asked for, and the answer must name one of them: an API server that does not know
audiences answers without, and is not believed. An answer that is not a plain yes is no. A token for others besides is
refused: they could bring it here. A JWT tells by itself, as the answer names only audiences that were asked for; one
that is no JWT has to be taken at the API server's word.
Leaves to others: to ask once for many and to remember the answer for ten seconds (``cache``).
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
    """Verifies by asking, for some at once and each peer in turn; the client's time limit is ours (10 s)."""

    def __init__(
        self, client: ApiClient, *, audiences: Callable[[], frozenset[str]], semaphore: FairSemaphore | None = None
    ) -> None:
        self._client = client
        self._audiences = audiences
        self._semaphore = semaphore or FairSemaphore()

    def audiences(self) -> frozenset[str]:
        """Tell which audiences are ours now."""
        return self._audiences()

    async def verify(self, token: bytes, peer: str = "", /) -> Caller:
        """Ask for a token; raises ``Denied`` or ``Unavailable``.

        1. There is an audience that is ours. 2. The token is for one audience, as far as it tells. 3. The API server
        vouches for it.
        """
        # 1
        ours = self._audiences()
        if not ours:
            raise _unavailable("no audience is ours: no Service selects this pod")
        # 2
        claims = _own_words(token)
        if len(_texts(claims.get("aud"))) > 1:
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
    """Believe a TokenReview; raises ``Denied``.

    1. It says yes, in one word and without an error. 2. It names one of our audiences, and nobody else's.
    3. It names a user.
    """
    status = dig(answer, "status")
    # 1
    if dig(status, "authenticated") is not True or dig(status, "error"):
        raise _denied("authenticated true and no error", "another answer")
    # 2: kube-apiserver leaves audiences out where its authenticator knows none
    audiences = frozenset(_texts(dig(status, "audiences")))
    if not audiences or not audiences <= ours:
        raise _denied("an answer for one of our audiences", "one for others, or for none")
    # 3
    user = dig(status, "user", "username")
    if not isinstance(user, str) or not user:
        raise _denied("a user's name", "none")
    groups = tuple(_texts(dig(status, "user", "groups")))
    return Caller(user=user, groups=groups, audiences=audiences, expires=expires, key_id=_VERIFIED_BY)


def _own_words(token: bytes) -> JsonObject:
    """Read what a JWT claims, nothing of what is none. It counts once the API server has vouched for all of it."""
    try:
        return compact_jws.parse_claims(compact_jws.split(token, max_size=len(token)).payload)
    except ParseError:
        return {}


def _expiry(claims: JsonObject) -> float | None:
    """Tell when a token ends."""
    until = claims.get("exp")
    if not isinstance(until, int | float) or isinstance(until, bool):
        return None
    return float(max(0, min(until, _LATEST)))


def _texts(value: JsonValue) -> list[str]:
    return [each for each in value if isinstance(each, str) and each] if isinstance(value, list) else []


def _denied(expected: str, got: str) -> Denied:
    return Denied(Reason.TOKEN_REVIEW_REFUSED, expected=expected, got=got, remedy=_REMEDY)


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(Reason.API_UNAVAILABLE, detail, remedy="see whether the API server can be reached from this pod")
