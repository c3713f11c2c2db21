"""Who calls: what a token proves, and what of it an add-on is told. Pure.

Promises: a ``Caller`` has a name that a header carries as it is. A name that no header could carry is refused, never
rewritten: an add-on that takes the rewritten name for the name would let one user act as another.
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
_MOST_NAME: Final = 1024
"""Characters; what kube-apiserver takes of a user's name has no limit, what a header can carry has."""
_MOST_GROUPS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What was proved of a token."""

    user: str
    groups: tuple[str, ...] = ()
    audiences: frozenset[str]
    """Of the token and ours."""
    expires: float | None
    """Seconds since the epoch; None where the token does not say."""
    key_id: str
    """For the log; what verified it where no key did."""


class Verifier(Protocol):
    """Proves tokens."""

    async def verify(self, token: bytes, peer: str, /) -> Caller:
        """Raise ``Denied``, or ``Unavailable`` while nothing can be said; ``peer``: the address that it came from."""
        ...

    def audiences(self) -> frozenset[str]:
        """Tell which audiences are ours now."""
        ...


def require_allowed(caller: Caller, users: frozenset[str], groups: frozenset[str]) -> None:
    """Raise ``RefusalError`` for a caller who is known and not let through.

    1. The name can be told as it is. 2. Where users or groups are named, this is one of them.
    """
    # 1
    if not _is_tellable(caller.user):
        raise RefusalError(Refusal.USER_NOT_ALLOWED, "expected a name that a header can carry, got another")
    # 2
    if (users or groups) and caller.user not in users and groups.isdisjoint(caller.groups):
        raise RefusalError(Refusal.USER_NOT_ALLOWED, "expected a user or group that is let through, got another")


def identity_headers(caller: Caller, *, groups: bool) -> list[tuple[str, str]]:
    """Write what the add-on is told; raises ``RefusalError`` for groups that could not be told apart.

    A group with a comma would be two where an upstream joins the fields of one name (RFC 9110 §5.3).
    """
    told = [(USER, caller.user)]
    if groups:
        if len(caller.groups) > _MOST_GROUPS or any("," in each or not _is_tellable(each) for each in caller.groups):
            raise RefusalError(Refusal.USER_NOT_ALLOWED, "expected groups that a header can carry, got others")
        told += [(GROUP, each) for each in caller.groups]
    return told


def _is_tellable(name: str) -> bool:
    return len(name) <= _MOST_NAME and is_safe_value(name)
