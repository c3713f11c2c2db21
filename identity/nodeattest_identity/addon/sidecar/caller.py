"""The verified caller of a request, and the identity headers for the add-on. Pure.

Promises: the name of a ``Caller`` fits into a header unchanged. A name that does not fit is refused, never rewritten:
a rewritten name could be another user's.
Source: companion proposal 003; apiserver authentication/request/headerrequest (names are taken byte for byte).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from nodeattest_identity.proxy.headers import is_safe_value
from nodeattest_identity.proxy.refusals import Refusal, RefusalError

__all__ = ["Caller", "Verifier", "identity_headers", "require_allowed"]

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

    async def verify(self, token: bytes, peer: str, /) -> Caller:
        """Verify a token that came from the address ``peer``; raises ``Denied`` or ``Unavailable``."""
        ...

    def audiences(self) -> frozenset[str]:
        """Return the audiences that are ours now."""
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
