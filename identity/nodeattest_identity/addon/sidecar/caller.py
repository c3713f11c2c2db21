"""The one bearer token of a request, its verified caller, and the identity headers for the add-on. Pure.

Promises: there is exactly one token, in exactly one ``Authorization`` header. A token in the query is refused, because
queries are logged and forwarded. The name of a ``Caller`` fits into a header unchanged. A name that does not fit is
refused, never rewritten: a rewritten name could be another user's. No message quotes a credential.
Source: RFC 6750 §2.1 to §2.3; RFC 9110 §11.6.2; companion proposal 003; apiserver authentication/request/headerrequest
(names are taken byte for byte).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import unquote_to_bytes

from nodeattest_identity.proxy.headers import RawHeaders, canonical, is_safe_value
from nodeattest_identity.proxy.paths import RequestTarget
from nodeattest_identity.proxy.refusals import Refusal, RefusalError

USER: Final = "X-Authenticated-User"
GROUP: Final = "X-Authenticated-Groups"
_MAX_NAME: Final = 1024
"""Characters; kube-apiserver sets no limit for names, headers have one."""
_MAX_GROUPS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The verified content of a token."""

    user: str
    groups: tuple[str, ...] = ()
    audiences: frozenset[str]
    """Audiences of the token that are ours."""
    expires: float | None
    """Seconds since the epoch; None if the token has no expiry."""
    key_id: str
    """For the log; the method, if no key verified it."""


class Verifier(Protocol):
    """Verifies tokens."""

    async def verify(self, token: bytes, peer: str, audiences: frozenset[str], /) -> Caller:
        """Verify a token for one of our audiences, from the address ``peer``; raises ``Denied`` or ``Unavailable``."""
        ...


def require_allowed(caller: Caller, users: frozenset[str], groups: frozenset[str]) -> None:
    """Raise ``RefusalError`` for a caller who is not allowed.

    1. The name fits into a header. 2. If users or groups are listed, the caller is one of them.
    """
    # 1
    if not _fits_header(caller.user):
        raise RefusalError(Refusal.USER_NOT_ALLOWED, "expected a name that a header can carry, got another")
    # 2
    if (users or groups) and caller.user not in users and groups.isdisjoint(caller.groups):
        raise RefusalError(Refusal.USER_NOT_ALLOWED, "expected a user or group that is let through, got another")


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


_BEARER: Final = re.compile(rb"bearer +([A-Za-z0-9._~+/\-]+=*)", re.IGNORECASE)
"""RFC 6750 §2.1, with any number of spaces (RFC 9110 §11.6.2)."""


def bearer(headers: RawHeaders) -> bytes:
    """Return the token of a request; raises ``RefusalError``."""
    given = [value for name, value in headers if canonical(name) == b"authorization"]
    if len(given) > 1:
        raise RefusalError(Refusal.CREDENTIALS_AMBIGUOUS, f"expected one Authorization header, got {len(given)}")
    found = _BEARER.fullmatch(given[0].strip()) if given else None
    if found is None:
        got = "another scheme, or no token" if given else "none"
        raise RefusalError(
            Refusal.CREDENTIALS_MISSING,
            f"expected Authorization: Bearer, got {got}",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return found.group(1)


def require_no_token_in_query(target: RequestTarget) -> None:
    """Raise ``RefusalError`` for ``?access_token=`` in any spelling."""
    if not target.query:
        return
    for part in re.split("[&;]", target.query):
        name = unquote_to_bytes(part.partition("=")[0].replace("+", " "))
        if canonical(name.strip()) == b"access-token":
            raise RefusalError(Refusal.CREDENTIALS_AMBIGUOUS, "expected no access_token in the query, got one")
