"""Claims of a JWT whose signature is proved: bytes become ``Claims`` here, or are refused. Pure.

Promises: every member stands once, at every depth; times are finite numbers and no booleans; ``iss``, ``sub``, ``aud``
and ``exp`` are there. Leaves to others: whether the claims are the expected ones (``jwt``).
Source: RFC 7519 §4.1 and §2 (NumericDate), RFC 8259 §4 and §9; Kubernetes pkg/serviceaccount/claims.go.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Final, NoReturn, cast

from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason

__all__ = ["Claims", "json_object", "malformed", "read_claims"]

_KNOWN: Final = frozenset({"iss", "sub", "aud", "exp", "nbf", "iat", "jti"})
_LATEST: Final = 2**53
"""Seconds; the largest integer that every JSON reader reads alike (RFC 8259 §6)."""
_MOST_DIGITS: Final = 24
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
    members = json_object(payload, "claims")
    missing = [name for name in ("iss", "sub", "aud", "exp") if name not in members]
    if missing:
        raise malformed("claims iss, sub, aud and exp", f"none of name {', '.join(missing)}", _REMEDY)
    return Claims(
        subject=_text(members, "sub"),
        issuer=_text(members, "iss"),
        audiences=_audiences(members["aud"]),
        expires=_seconds(members, "exp"),
        issued_at=_seconds(members, "iat") if "iat" in members else None,
        not_before=_seconds(members, "nbf") if "nbf" in members else None,
        jwt_id=_text(members, "jti") if "jti" in members else None,
        key_id=key_id,
        algorithm=algorithm,
        extra={name: value for name, value in members.items() if name not in _KNOWN},
    )


def json_object(data: bytes, what: str) -> JsonObject:
    """Read a JSON object, each member once at every depth; raises ``Denied``."""
    try:
        found = cast(
            "JsonValue",
            json.loads(
                data.decode(),
                object_pairs_hook=_members,
                parse_int=_integer,
                parse_float=_number,
                parse_constant=_no_number,
            ),
        )
        if b"\\u" in data:
            json.dumps(found, ensure_ascii=False).encode()  # half a character would be no text
    except (ValueError, RecursionError):
        raise malformed(f"{what}: a JSON object, each member once", "something else") from None
    if not isinstance(found, dict):
        raise malformed(f"{what}: a JSON object, each member once", "JSON of another kind")
    return found


def malformed(expected: str, got: str, remedy: str = "check that the whole token was given, and who made it") -> Denied:
    """Make the refusal of what is no JWT that we take."""
    return Denied(Reason.JWT_MALFORMED, expected=expected, got=got, remedy=remedy)


def _members(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a repeated member")  # RFC 7519 §4: readers differ in which of them counts
    return members


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError("a number of too many digits")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number that is not finite")
    return value


def _no_number(_: str) -> NoReturn:
    raise ValueError("no JSON number")


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


def _seconds(members: JsonObject, name: str) -> float:
    value = members[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST:
        raise malformed(f"{name} in seconds since 1970", "something else")
    return value
