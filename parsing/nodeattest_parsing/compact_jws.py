"""A JWS in its compact serialization, split strictly; nothing is verified here, and no header or claim interpreted.

Source: RFC 7515 §5.2 (1) to (3) and §4, RFC 7519 §4 and §2 (NumericDate).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nodeattest_parsing.strict_base64 import decode_base64url
from nodeattest_parsing.strict_json import parse_object
from nodeattest_parsing.values import JsonObject, ParseError

_PARTS: Final = 3

_MAX_DEPTH: Final = 16
"""Levels; claims of Kubernetes have four."""

_LATEST: Final = 2**53
"""Seconds; the largest integer that every JSON reader reads alike (RFC 8259 §6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactJws:
    """A well-formed JWS, of which nothing is verified."""

    header: JsonObject
    payload: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    signed: bytes = field(repr=False)
    """What the signature is over: the first two parts as they were sent."""


def split(data: bytes, *, max_size: int) -> CompactJws:
    parts = data.split(b".") if len(data) <= max_size else []
    if len(parts) != _PARTS:
        raise ParseError(f"three parts in at most {max_size} bytes", f"{len(data)} bytes, {len(parts)} parts")
    header, payload, signature = (decode_base64url(part) for part in parts)
    return CompactJws(
        header=_object(header, "header"), payload=payload, signature=signature, signed=data.rpartition(b".")[0]
    )


def parse_claims(payload: bytes) -> JsonObject:
    return _object(payload, "claims")


def numeric_date(claims: JsonObject, name: str) -> float | None:
    """Read a claim that is a time, in seconds since 1970; None where there is none. Raises ``ParseError``."""
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST:
        raise ParseError(f"{name} in seconds since 1970", "something else")
    return value


def _object(data: bytes, what: str) -> JsonObject:
    try:
        return parse_object(data, max_size=None, max_depth=_MAX_DEPTH, floats=True)
    except ParseError as error:
        raise ParseError(f"{what}: a JSON object, each member once", error.found) from None
