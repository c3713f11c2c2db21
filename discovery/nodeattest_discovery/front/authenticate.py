"""Authenticates a JWT by the bootstrap token that signed it. Pure.

Promises: a bad JWT, an unknown token, a wrong signature, an expired token and one without the usages take the same path
here, with one MAC each, and end in one ``Denied``. Leaves to others: what an authenticated client gets, which is never
more than cluster-info.
Source: companion proposal 000, "JWT authentication"; RFC 6750 §2.1 (Bearer).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from nodeattest_discovery import jwt, secret
from nodeattest_discovery.jwt import Mac, UnverifiedJWT
from nodeattest_discovery.secret import TokenSecret
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Denied, Reason

__all__ = ["TokenLookup", "authenticate", "bearer_token"]

TokenLookup = Callable[[str], Mapping[str, object] | None]
"""Returns the Secret of a token id."""

_DUMMY_TOKEN: Final = BootstrapToken("000000", "0" * 16)
_DUMMY_SECRET: Final[Mapping[str, object]] = {
    "metadata": {"name": secret.secret_name(_DUMMY_TOKEN.id)},
    "type": secret.SECRET_TYPE,
    "data": secret.encode(TokenSecret(token=_DUMMY_TOKEN, expires=datetime(9999, 1, 1, tzinfo=UTC))),
}
"""What is read where there is no Secret, so that this takes as long: all that a usual token has, expiration and group
too. ``jwt.verify`` takes no token of this for good, because 000000 is asked for under its own Secret or none."""
_REMEDY: Final = "check the token: nodeattest token list"


def bearer_token(header: str) -> bytes:
    """Read what follows ``Bearer`` in an Authorization header; raises ``Denied``."""
    scheme, _, rest = header.partition(" ")
    if scheme.lower() != "bearer" or not rest:
        raise Denied(
            Reason.DISCOVERY_REQUEST_REFUSED,
            expected="Authorization: Bearer <JWT>",
            got="another scheme" if header else "none",
            remedy="ask with a JWT, made with a bootstrap token",
        )
    return rest.encode("utf-8", "surrogateescape")


def authenticate(
    unverified: UnverifiedJWT, lookup: TokenLookup, *, now: float, audience: str | None = None, mac: Mac = jwt.hs256
) -> BootstrapToken:
    """Return the token that a JWT was made with; raises ``Denied``.

    1. Check its Secret, or a dummy in its place: it signs, authenticates, is not being deleted.
    2. The JWT is the token's, and valid now (``jwt.verify``).
    3. Only now apply the result of 1.
    """
    # 1
    found = lookup(unverified.token_id)
    read = _DUMMY_SECRET if found is None else found
    moment = datetime.fromtimestamp(now, UTC)
    stored = secret.stored_token(read)
    signs = secret.signing_token(read, moment) is not None
    authenticates = secret.authenticating_groups(read, moment) is not None
    # 2
    jwt.verify(unverified, None if found is None else stored, now=now, audience=audience, mac=mac)
    # 3
    if stored is None or not (signs and authenticates):
        raise Denied(
            Reason.DISCOVERY_REQUEST_REFUSED,
            expected="a token that has not expired, with the usages signing and authentication",
            got="another",
            remedy=_REMEDY,
        )
    return stored
