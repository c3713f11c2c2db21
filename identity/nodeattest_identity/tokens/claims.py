"""Claims of a JWT whose signature is proved: bytes become ``Claims`` here, or are refused. Pure.

Promises: every member stands once, at every depth; times are finite numbers and no booleans; ``iss``, ``sub``, ``aud``
and ``exp`` are there. Leaves to others: whether the claims are the expected ones (``jwt``).
Source: RFC 7519 §4.1 and §2 (NumericDate), RFC 8259 §4 and §9; Kubernetes pkg/serviceaccount/claims.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_parsing import compact_jws
from nodeattest_parsing.errors import ParseError
from nodeattest_providers.errors import Denied, Reason

__all__ = ["Claims", "malformed", "read_claims"]

_KNOWN: Final = frozenset({"iss", "sub", "aud", "exp", "nbf", "iat", "jti"})
_MOST_AUDIENCES: Final = 64
_REMEDY: Final = (
    "ask for a token of a service account by TokenRequest (kubectl create token, a projected volume): it has an "
    "audience and an end"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a proved token says; times in seconds since the epoch."""

    subject: str
    issuer: str
    audiences: tuple[str, ...]
    expires: float
    issued_at: float | None
    not_before: float | None
    jwt_id: str | None
    key_id: str
    algorithm: str
    extra: JsonObject = field(repr=False)
    """All other claims, as they stand."""


def read_claims(payload: bytes, *, key_id: str, algorithm: str) -> Claims:
    """Read claims; raises ``Denied``. Tokens of old Secrets have neither ``aud`` nor ``exp``, and are refused."""
    try:
        members = compact_jws.parse_claims(payload)
        times = {name: compact_jws.numeric_date(members, name) for name in ("exp", "iat", "nbf")}
    except ParseError as error:
        raise malformed(error.expected, error.found) from None
    expires = times["exp"]
    missing = [name for name in ("iss", "sub", "aud", "exp") if name not in members]
    if missing or expires is None:
        raise malformed("claims iss, sub, aud and exp", f"none of name {', '.join(missing)}", _REMEDY)
    return Claims(
        subject=_text(members, "sub"),
        issuer=_text(members, "iss"),
        audiences=_audiences(members["aud"]),
        expires=expires,
        issued_at=times["iat"],
        not_before=times["nbf"],
        jwt_id=_text(members, "jti") if "jti" in members else None,
        key_id=key_id,
        algorithm=algorithm,
        extra={name: value for name, value in members.items() if name not in _KNOWN},
    )


def malformed(expected: str, got: str, remedy: str = "check that the whole token was given, and who made it") -> Denied:
    """Make the refusal of what is no JWT that we take."""
    return Denied(Reason.JWT_MALFORMED, expected=expected, got=got, remedy=remedy)


def _text(members: JsonObject, name: str) -> str:
    value = members[name]
    if not isinstance(value, str) or not value:
        raise malformed(f"{name}: a text", "something else, or an empty one")
    return value


def _audiences(value: JsonValue) -> tuple[str, ...]:
    """Read one audience, or a list of them (RFC 7519 §4.1.3)."""
    given = value if isinstance(value, list) else [value]
    found = tuple(each for each in given if isinstance(each, str) and each)
    if len(found) != len(given) or not 0 < len(found) <= _MOST_AUDIENCES:
        raise malformed(f"aud: a text, or a list of 1 to {_MOST_AUDIENCES} texts", "something else", _REMEDY)
    return found
