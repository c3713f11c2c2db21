"""Canonical JSON, base64url and closed schemas: the one spelling in which evidence and challenges travel.

Promises: any bytes give a value or ``Denied``; a value has exactly one spelling, so decoding then encoding gives the
same bytes. Linear in time; size, depth and number of values are bounded, so that the largest text costs a few
milliseconds. Messages name fields of ours and lengths, never content.
Leaves to others: what the fields mean (each provider's ``protocol``).
Source: docs/wire-format.md, "Canonical JSON"; strings are escaped as in RFC 8785 §3.2.2.2, keys are sorted by code
point, numbers are int64 only (so that RFC 8785's number formatting never matters), base64url is RFC 4648 §5 without
padding and with zero trailing bits (§3.5).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NoReturn

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonObject, JsonValue

__all__ = ["MAX_DEPTH", "MAX_SIZE", "MAX_VALUES", "Fields", "b64decode", "b64encode", "dumps", "loads"]

MAX_SIZE: Final = 256 * 1024
"""Bytes of one JSON text; the whole envelope is no larger (docs/wire-format.md, "Limits")."""
MAX_DEPTH: Final = 8
"""Levels of arrays and objects, the outermost included; the deepest schema of ours has 3."""
MAX_VALUES: Final = 4096
"""Objects, arrays, strings, numbers and literals of one JSON text, in all; evidence of ours has 35 at most.

Bytes in strings are cheap; 256 KiB of one-digit numbers took 40 ms.
"""
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_INT64_CHARS: Final = 20
"""Longest decimal spelling of an int64, sign included: longer digits are refused before they are converted."""

_REMEDY: Final = "send evidence in the canonical form of docs/wire-format.md"


class _NotCanonicalError(ValueError):
    """Carries what was found, in words that hold no evidence."""


def loads(data: bytes) -> JsonObject:
    """Read one canonical JSON object; anything else is ``Denied``."""
    try:
        return _parse(data)
    except _NotCanonicalError as error:
        raise Denied(
            Reason.EVIDENCE_MALFORMED, expected="one canonical JSON object", got=str(error), remedy=_REMEDY
        ) from None


def dumps(value: JsonObject) -> bytes:
    """Write the canonical spelling; a value that has none (float, lone surrogate, too deep) is a ``ValueError``."""
    _check(value)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _NotCanonicalError("a lone surrogate") from None


def _parse(data: bytes) -> JsonObject:
    if len(data) > MAX_SIZE:
        raise _NotCanonicalError(f"{len(data)} bytes")
    budget = _Budget()
    try:
        value: JsonValue = json.loads(
            data.decode(),  # never bytes: json.loads would guess UTF-16 and UTF-32
            object_pairs_hook=budget.object,
            parse_int=budget.integer,
            parse_float=_no_float,
            parse_constant=_no_float,
        )
    except UnicodeDecodeError:
        raise _NotCanonicalError("bytes that are not UTF-8") from None
    except json.JSONDecodeError:
        raise _NotCanonicalError("text that is not JSON") from None
    except RecursionError:  # json's own answer to nesting that it cannot follow
        raise _NotCanonicalError(f"nesting deeper than {MAX_DEPTH}") from None
    if not isinstance(value, dict):
        raise _NotCanonicalError("a JSON value that is not an object")
    if dumps(value) != data:
        raise _NotCanonicalError("another spelling of the same value")
    return value


class _Budget:
    """Counts the values that cost a call each while they are read; ``_check`` counts all."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def object(self, pairs: list[tuple[str, JsonValue]]) -> JsonObject:
        self._take()
        value = dict(pairs)
        if len(value) != len(pairs):
            raise _NotCanonicalError("a duplicate key")
        return value

    def integer(self, digits: str) -> int:
        self._take()
        if len(digits) > _INT64_CHARS:
            raise _NotCanonicalError("an integer beyond 64 bits")
        return int(digits)

    def _take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _NotCanonicalError(f"more than {MAX_VALUES} values")


def _no_float(_: str) -> NoReturn:
    raise _NotCanonicalError("a number that is not an integer")


def _check(value: JsonObject) -> None:
    """Refuse what has no canonical spelling, in values of ours as in bytes of others; level by level."""
    level: list[JsonValue] = [value]
    count = depth = 0
    while level:
        depth += 1
        count += len(level)
        if count > MAX_VALUES:
            raise _NotCanonicalError(f"more than {MAX_VALUES} values")
        containers = [inner for inner in map(_inside, level) if inner is not None]
        if containers and depth > MAX_DEPTH:
            raise _NotCanonicalError(f"nesting deeper than {MAX_DEPTH}")
        level = [each for inner in containers for each in inner]


def _inside(value: JsonValue) -> Iterable[JsonValue] | None:
    """Return the values of an array or object; None for a scalar."""
    match value:
        case None | bool() | str():
            return None
        case int():
            if not _INT64_MIN <= value <= _INT64_MAX:
                raise _NotCanonicalError("an integer beyond 64 bits")
            return None
        case list():
            return value
        case dict():
            return value.values()
        case _:  # a caller that broke the type: json would write a float
            raise _NotCanonicalError("a value that is not JSON of integers")


def b64encode(data: bytes) -> str:
    """Spell bytes as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def b64decode(text: str) -> bytes:
    """Read base64url without padding in its one spelling; anything else is ``Denied``."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:  # binascii.Error and non-ASCII characters alike
        data = b""
    if b64encode(data) != text:  # foreign characters, padding, stray trailing bits
        raise Denied(
            Reason.EVIDENCE_MALFORMED,
            expected="base64url without padding",
            got=f"other text of {len(text)} characters",
            remedy=_REMEDY,
        )
    return data


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a closed schema: every key known, every required key present; the getters check type and size.

    ``where`` names the object in messages, e.g. ``challenge/v1 phase 2``.
    """

    where: str
    _values: JsonObject = field(repr=False)

    @classmethod
    def of(cls, value: JsonValue, where: str, required: Collection[str], optional: Collection[str] = ()) -> Fields:
        """Close the schema over a value; ``Denied`` unless it is an object with exactly these keys."""
        if not isinstance(value, dict):
            raise _malformed(where, "an object", _kind(value))
        missing = sorted(set(required) - value.keys())
        unknown = len(value.keys() - set(required) - set(optional))
        if missing or unknown:
            expected = f"exactly the fields {', '.join(sorted(required)) or 'none'}"
            if optional:
                expected += f" and perhaps {', '.join(sorted(optional))}"
            raise _malformed(where, expected, f"missing: {', '.join(missing) or 'none'}; unknown: {unknown}")
        return cls(where, value)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str, minimum: int, maximum: int) -> str:
        """Read a string of ``minimum`` to ``maximum`` characters."""
        value = self._values[key]
        if not isinstance(value, str):
            raise self._wrong(key, "a string", _kind(value))
        if not minimum <= len(value) <= maximum:
            raise self._wrong(key, f"{minimum} to {maximum} characters", str(len(value)))
        return value

    def integer(self, key: str, minimum: int, maximum: int) -> int:
        """Read an integer within bounds; true and false are no integers."""
        return self._integer(key, self._values[key], minimum, maximum)

    def integers(self, key: str, items: int, minimum: int, maximum: int) -> tuple[int, ...]:
        """Read an array of at most ``items`` integers, each within bounds."""
        return tuple(self._integer(key, item, minimum, maximum) for item in self._array(key, items))

    def flag(self, key: str) -> bool:
        """Read an optional flag: true or absent, since false would be a second spelling of absent."""
        if key not in self._values:
            return False
        if self._values[key] is not True:
            raise self._wrong(key, "true, or no such field", _kind(self._values[key]))
        return True

    def octets(self, key: str, minimum: int, maximum: int) -> bytes:
        """Read base64url of ``minimum`` to ``maximum`` bytes."""
        return self._octets(key, self._values[key], minimum, maximum)

    def octets_list(self, key: str, items: int, minimum: int, maximum: int) -> tuple[bytes, ...]:
        """Read an array of at most ``items`` base64url strings, each of ``minimum`` to ``maximum`` bytes."""
        return tuple(self._octets(key, item, minimum, maximum) for item in self._array(key, items))

    def nested(self, key: str, required: Collection[str], optional: Collection[str] = ()) -> Fields:
        """Read an object of a closed schema."""
        return Fields.of(self._values[key], f"{self.where}, {key}", required, optional)

    def nested_list(
        self, key: str, items: int, required: Collection[str], optional: Collection[str] = ()
    ) -> tuple[Fields, ...]:
        """Read an array of at most ``items`` objects of one closed schema."""
        return tuple(Fields.of(item, f"{self.where}, {key}", required, optional) for item in self._array(key, items))

    def _array(self, key: str, items: int) -> list[JsonValue]:
        value = self._values[key]
        if not isinstance(value, list):
            raise self._wrong(key, "an array", _kind(value))
        if len(value) > items:
            raise self._wrong(key, f"at most {items} items", str(len(value)))
        return value

    def _integer(self, key: str, value: JsonValue, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer", _kind(value))
        if not minimum <= value <= maximum:
            raise self._wrong(key, f"an integer from {minimum} to {maximum}", "one outside")
        return value

    def _octets(self, key: str, value: JsonValue, minimum: int, maximum: int) -> bytes:
        if not isinstance(value, str):
            raise self._wrong(key, "base64url", _kind(value))
        data = b64decode(value)
        if not minimum <= len(data) <= maximum:
            raise self._wrong(key, f"{minimum} to {maximum} bytes", str(len(data)))
        return data

    def _wrong(self, key: str, expected: str, got: str) -> Denied:
        return _malformed(f"{self.where}, {key}", expected, got)


def _kind(value: JsonValue) -> str:
    """Name a value's JSON type."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"


def _malformed(where: str, expected: str, got: str) -> Denied:
    return Denied(Reason.EVIDENCE_MALFORMED, expected=f"{where}: {expected}", got=got, remedy=_REMEDY)
