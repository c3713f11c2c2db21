"""Callers by TokenReview: the API server says whose token it is.

Promises: our audiences are always asked for, and the answer must name one of them: an API server that does not know
audiences answers without, and is not believed. An answer that is not a plain yes is no.
Leaves to others: to ask once for many and to remember the answer for ten seconds (``cache``).
Source: authentication.k8s.io/v1 TokenReview ("status.audiences"); apiserver plugin/pkg/authenticator/token/webhook.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from nodeattest_identity.addon.sidecar.callers import Caller
from nodeattest_identity.tokens import jwt
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.jsontypes import JsonObject, JsonValue, dig
from nodeattest_providers.errors import Denied, Reason, Unavailable

__all__ = ["ReviewVerifier", "read_review"]

_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_VERIFIED_BY: Final = "TokenReview"
_REMEDY: Final = "ask for a token with this audience (kubectl create token --audience)"


class ReviewVerifier:
    """Verifies by asking; the client's time limit is ours (10 s)."""

    def __init__(self, client: ApiClient, *, audiences: Callable[[], frozenset[str]]) -> None:
        self._client = client
        self._audiences = audiences

    def audiences(self) -> frozenset[str]:
        """Tell which audiences are ours now."""
        return self._audiences()

    async def verify(self, token: bytes) -> Caller:
        """Ask for a token; raises ``Denied`` or ``Unavailable``."""
        ours = self._audiences()
        if not ours:
            raise _unavailable("no audience is ours: no Service selects this pod")
        spec: JsonObject = {"token": token.decode("ascii"), "audiences": [*sorted(ours)]}
        question: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        try:
            answer = await self._client.create(_PATH, question)
        except ApiError as error:
            raise _unavailable(f"the API server did not review a token: {error.reason}") from None
        return read_review(answer, ours, expires=_expiry(token))


def read_review(answer: JsonObject, ours: frozenset[str], *, expires: float | None) -> Caller:
    """Believe a TokenReview; raises ``Denied``.

    1. It says yes, in one word and without an error. 2. It names one of our audiences. 3. It names a user.
    """
    status = dig(answer, "status")
    # 1
    if dig(status, "authenticated") is not True or dig(status, "error"):
        raise _denied("authenticated true and no error", "another answer")
    # 2: kube-apiserver leaves audiences out where its authenticator knows none
    audiences = ours.intersection(_texts(dig(status, "audiences")))
    if not audiences:
        raise _denied("an answer for one of our audiences", "one for others, or for none")
    # 3
    user = dig(status, "user", "username")
    if not isinstance(user, str) or not user:
        raise _denied("a user's name", "none")
    groups = tuple(_texts(dig(status, "user", "groups")))
    return Caller(user=user, groups=groups, audiences=audiences, expires=expires, key_id=_VERIFIED_BY)


def _expiry(token: bytes) -> float | None:
    """Read when a token ends by its own words, which count once the API server has vouched for all of it."""
    try:
        claims: object = json.loads(jwt.parse(token).payload)
    except (Denied, ValueError, RecursionError):
        return None
    until = claims.get("exp") if isinstance(claims, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return float(until) if isinstance(until, int | float) and not isinstance(until, bool) else None


def _texts(value: JsonValue) -> list[str]:
    return [each for each in value if isinstance(each, str) and each] if isinstance(value, list) else []


def _denied(expected: str, got: str) -> Denied:
    return Denied(Reason.TOKEN_REVIEW_REFUSED, expected=expected, got=got, remedy=_REMEDY)


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(Reason.API_UNAVAILABLE, detail, remedy="see whether the API server can be reached from this pod")
