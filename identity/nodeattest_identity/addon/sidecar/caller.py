"""The caller of a request: its one bearer token, what the token proves, and the identity headers for the add-on.

A token has no leeway, because responses end with it, and one audience, because another could replay it. A name that
does not fit into a header is refused and never rewritten: it could become another user's.
Source: RFC 6750 §2.1 to §2.3, RFC 9110 §11.6.2, RFC 8725 §3; companion proposal 003, "Properties of this token".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from nodeattest_identity.proxy.refusals import Refusal, RefusalError
from nodeattest_identity.proxy.request import RawHeaders, RequestTarget, canonical, is_safe_value
from nodeattest_identity.tokens import jwt
from nodeattest_identity.tokens.jwks_cache import JWKSCache
from nodeattest_providers.errors import Denied, Reason, Unavailable

USER: Final = "X-Authenticated-User"
GROUP: Final = "X-Authenticated-Groups"
_MAX_NAME: Final = 1024
"""Characters; kube-apiserver sets no limit for names, headers have one."""
_MAX_GROUPS: Final = 64
_REMEDY: Final = "ask for a new token, and set the clocks of both sides by NTP"
_BEARER: Final = re.compile(rb"bearer +([A-Za-z0-9._~+/\-]+=*)", re.IGNORECASE)
"""RFC 6750 §2.1, with any number of spaces (RFC 9110 §11.6.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The verified content of a token."""

    user: str
    groups: tuple[str, ...] = ()
    audience: str
    expires: float
    """Seconds since the epoch."""
    key_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerVerifier:
    """Verifies JWTs of one issuer for the audiences of this add-on."""

    keys: JWKSCache
    issuer: str
    audiences: Callable[[], frozenset[str]]
    """Returns the add-on's current audiences."""
    longest_lifetime: float
    """Seconds that a token may be valid for."""
    now: Callable[[], float]
    """Seconds since the epoch."""

    async def verify(self, token: bytes) -> Caller:
        audiences = self.audiences()
        if not audiences:
            raise Unavailable(
                Reason.API_UNAVAILABLE,
                "no Service selects this pod, so the add-on has no audience",
                remedy="make a Service that selects it, or name the audience (--audience)",
            )
        unverified = jwt.parse(token)
        keys = await self.keys.keys_for(unverified.key_id)
        now = self.now()
        expected = jwt.Expected(
            issuer=self.issuer, audiences=audiences, longest_lifetime=self.longest_lifetime, single_audience=True
        )
        claims = jwt.verify(unverified, keys, expected, now)
        if claims.expires <= now:
            raise Denied(Reason.JWT_EXPIRED, expected="exp to come", got="one within the leeway", remedy=_REMEDY)
        groups = claims.extra.get("groups", [])
        names = [each for each in groups if isinstance(each, str) and each] if isinstance(groups, list) else []
        if not isinstance(groups, list) or len(names) != len(groups):
            raise Denied(Reason.JWT_MALFORMED, expected="groups: a list of texts", got="another", remedy=_REMEDY)
        return Caller(
            user=claims.subject,
            groups=tuple(names),
            audience=claims.audiences[0],
            expires=claims.expires,
            key_id=claims.key_id,
        )


def bearer(headers: RawHeaders) -> bytes:
    """Return the token of a request; raises ``RefusalError``."""
    values = [value for name, value in headers if canonical(name) == b"authorization"]
    if len(values) > 1:
        raise RefusalError(Refusal.CREDENTIALS_AMBIGUOUS, f"expected one Authorization header, got {len(values)}")
    match = _BEARER.fullmatch(values[0].strip()) if values else None
    if match is None:
        got = "another scheme, or no token" if values else "none"
        raise RefusalError(
            Refusal.CREDENTIALS_MISSING,
            f"expected Authorization: Bearer, got {got}",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return match.group(1)


def require_no_token_in_query(target: RequestTarget) -> None:
    """Raise ``RefusalError`` for ``?access_token=`` in any spelling."""
    for part in re.split("[&;]", target.query or ""):
        name = unquote_to_bytes(part.partition("=")[0].replace("+", " "))
        if canonical(name.strip()) == b"access-token":
            raise RefusalError(Refusal.CREDENTIALS_AMBIGUOUS, "expected no access_token in the query, got one")


def require_allowed(caller: Caller, users: frozenset[str], groups: frozenset[str]) -> None:
    """Raise ``RefusalError`` for a caller who is not allowed.

    1. The name fits into a header. 2. If users or groups are listed, the caller is one of them.
    """
    # 1
    if not _fits_header(caller.user):
        raise RefusalError(Refusal.USER_NOT_ALLOWED, "expected a name that a header can carry, got another")
    # 2
    if (users or groups) and caller.user not in users and groups.isdisjoint(caller.groups):
        raise RefusalError(Refusal.USER_NOT_ALLOWED, "expected an allowed user or group, got another")


def identity_headers(caller: Caller, *, groups: bool) -> list[tuple[str, str]]:
    """Return the identity headers; raises ``RefusalError`` for ambiguous groups.

    A group with a comma becomes two groups if the upstream joins the fields of one name (RFC 9110 §5.3).
    """
    headers = [(USER, caller.user)]
    if groups:
        if len(caller.groups) > _MAX_GROUPS or any("," in each or not _fits_header(each) for each in caller.groups):
            raise RefusalError(Refusal.USER_NOT_ALLOWED, "expected groups that a header can carry, got others")
        headers += [(GROUP, each) for each in caller.groups]
    return headers


def _fits_header(name: str) -> bool:
    return len(name) <= _MAX_NAME and is_safe_value(name)
