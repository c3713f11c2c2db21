"""Parses and answers TokenReviews of a kube-apiserver. Pure.

Promises: bytes give a ``TokenReview`` or ``Denied``. The holder of a valid JWT is ``nodeattest:discovery:<id>`` in
the group ``nodeattest:discovery``, and never anything of ``system:``. A JWT was sent to an unverified server and is
valid for two minutes: it must not be worth as much as the token itself.
Source: k8s.io/api authentication/v1 and v1beta1; apiserver plugin/pkg/authenticator/token/webhook.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeattest_discovery.token import is_token_id
from nodeattest_kube.jsontypes import JsonObject, JsonValue, dig, dig_text, parse_json
from nodeattest_providers.errors import Denied, Reason

__all__ = ["GROUP", "MAX_BODY", "USER_PREFIX", "TokenReview", "answer", "parse", "suits"]

GROUP: Final = "nodeattest:discovery"
USER_PREFIX: Final = "nodeattest:discovery:"
MAX_BODY: Final = 64 * 1024
"""Bytes; a kube-apiserver takes headers of 1 MiB, but no token of ours is longer than 4 KiB."""
_GROUP_NAME: Final = "authentication.k8s.io"
_VERSIONS: Final = frozenset({f"{_GROUP_NAME}/v1", f"{_GROUP_NAME}/v1beta1"})
_MAX_VALUES: Final = 1000
_MAX_AUDIENCES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReview:
    """A question."""

    api_version: str
    token: bytes = field(repr=False)
    audiences: tuple[str, ...]
    """One of these must be the token's; empty: the API server's own, which it does not name."""


def parse(body: bytes) -> TokenReview:
    """Read a TokenReview; raises ``Denied``."""
    if len(body) > MAX_BODY:
        raise _malformed(f"at most {MAX_BODY} bytes", f"{len(body)}")
    try:
        document = parse_json(body, max_values=_MAX_VALUES)
    except ValueError:
        raise _malformed("a JSON object", "something else") from None
    version = dig_text(document, "apiVersion")
    if document.get("kind") != "TokenReview" or version not in _VERSIONS:
        raise _malformed(f"TokenReview of {' or '.join(sorted(_VERSIONS))}", "another")
    token = dig_text(document, "spec", "token")
    if not token:
        raise _malformed("spec.token", "none")
    return TokenReview(
        api_version=version, token=token.encode(), audiences=_audiences(dig(document, "spec", "audiences"))
    )


def suits(audience: str | None, wanted: Sequence[str]) -> bool:
    """Return whether a JWT's audience is among those that are asked for; a JWT without one is for its cluster only.

    The API server compares an answer without audiences with its own (TokenReviewStatus.audiences), so that a question
    for somebody else's is not answered by such a JWT.
    """
    return audience is None or not wanted or audience in wanted


def answer(review: TokenReview, token_id: str | None, audience: str | None = None) -> bytes:
    """Answer for the holder of a token; None: for nobody."""
    status: JsonObject = {"authenticated": False}
    if token_id is not None:
        if not is_token_id(token_id):
            raise ValueError("no id of a token")  # a name in Kubernetes is made of it
        status = {"authenticated": True, "user": {"username": USER_PREFIX + token_id, "groups": [GROUP]}}
        if audience is not None and audience in review.audiences:
            status["audiences"] = [audience]
    document: JsonObject = {"apiVersion": review.api_version, "kind": "TokenReview", "status": status}
    return json.dumps(document, separators=(",", ":")).encode()


def _audiences(value: JsonValue) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MAX_AUDIENCES:
        raise _malformed(f"spec.audiences: a list of at most {_MAX_AUDIENCES}", "something else")
    found = tuple(item for item in value if isinstance(item, str))
    if len(found) != len(value):
        raise _malformed("spec.audiences: texts", "something else")
    return found


def _malformed(expected: str, got: str) -> Denied:
    remedy = "send what kube-apiserver sends to --authentication-token-webhook-config-file"
    return Denied(Reason.DISCOVERY_REQUEST_REFUSED, expected=expected, got=got, remedy=remedy)
