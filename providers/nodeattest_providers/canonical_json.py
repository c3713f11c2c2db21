"""Canonical JSON, base64url and closed schemas: the one spelling in which evidence and challenges travel.

Size, depth and number of values are bounded. Messages name fields of ours and lengths, never content.
Source: docs/wire-format.md, "Canonical JSON"; RFC 8785 §3.2.2.2 (strings); RFC 4648 §5, §3.5 (base64url).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.strict_base64 import decode_base64url, encode_base64url
from nodeattest_parsing.values import ParseError
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonObject, JsonValue

MAX_SIZE: Final = 256 * 1024
"""Bytes of one JSON text; the whole envelope is no larger (docs/wire-format.md, "Limits")."""
MAX_DEPTH: Final = 8
"""Levels of arrays and objects, the outermost included; the deepest schema of ours has 3."""
MAX_VALUES: Final = 4096
"""Values of one JSON text, in all: evidence of ours has 35 at most, and 256 KiB of digits took 40 ms."""

_REMEDY: Final = "send evidence in the canonical form of docs/wire-format.md"


def loads(data: bytes) -> JsonObject:
    try:
        value = strict_json.parse_object(data, max_size=MAX_SIZE, max_depth=MAX_DEPTH, max_values=MAX_VALUES)
    except ParseError as error:
        raise _not_canonical(error.got) from None
    if dumps(value) != data:
        raise _not_canonical("another spelling of the same value")
    return value


def dumps(value: JsonObject) -> bytes:
    """Write the canonical spelling; a value that has none (float, lone surrogate, too deep) is a ``ValueError``."""
    strict_json.check(value, max_depth=MAX_DEPTH, max_values=MAX_VALUES)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ParseError("canonical JSON", "a lone surrogate") from None


def b64encode(data: bytes) -> str:
    return encode_base64url(data)


def b64decode(text: str) -> bytes:
    try:
        return decode_base64url(text)
    except ParseError:
        raise Denied(
            Reason.EVIDENCE_MALFORMED,
            expected="base64url without padding",
            got=f"other text of {len(text)} characters",
            remedy=_REMEDY,
        ) from None


def encoded(**fields: JsonValue | bytes | tuple[bytes, ...]) -> JsonObject:
    """Write an object: bytes as base64url, a tuple as an array of them, and no field for None."""
    data: JsonObject = {}
    for name, value in fields.items():
        if isinstance(value, tuple):
            data[name] = [b64encode(each) for each in value]
        elif value is not None:
            data[name] = b64encode(value) if isinstance(value, bytes) else value
    return data


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a closed schema: every key known, every required key present; the getters check type and size."""

    where: str
    _values: JsonObject = field(repr=False)

    @classmethod
    def of(cls, value: JsonValue, where: str, required: Collection[str], optional: Collection[str] = ()) -> Fields:
        if not isinstance(value, dict):
            raise _malformed(where, "an object", _KINDS[type(value)])
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
        value = self._values[key]
        if not isinstance(value, str):
            raise self._wrong(key, "a string", _KINDS[type(value)])
        if not minimum <= len(value) <= maximum:
            raise self._wrong(key, f"{minimum} to {maximum} characters", str(len(value)))
        return value

    def integer(self, key: str, minimum: int, maximum: int) -> int:
        """Read an integer within bounds; true and false are no integers."""
        return self._integer(key, self._values[key], minimum, maximum)

    def integers(self, key: str, items: int, minimum: int, maximum: int) -> tuple[int, ...]:
        return tuple(self._integer(key, item, minimum, maximum) for item in self._array(key, items))

    def flag(self, key: str) -> bool:
        """Read an optional flag: true or absent, since false would be a second spelling of absent."""
        if self._values.get(key, True) is not True:
            raise self._wrong(key, "true, or no such field", _KINDS[type(self._values[key])])
        return key in self._values

    def octets(self, key: str, minimum: int, maximum: int) -> bytes:
        return self._octets(key, self._values[key], minimum, maximum)

    def octets_list(self, key: str, items: int, minimum: int, maximum: int) -> tuple[bytes, ...]:
        return tuple(self._octets(key, item, minimum, maximum) for item in self._array(key, items))

    def nested(self, key: str, required: Collection[str], optional: Collection[str] = ()) -> Fields:
        return Fields.of(self._values[key], f"{self.where}, {key}", required, optional)

    def _array(self, key: str, items: int) -> list[JsonValue]:
        value = self._values[key]
        if not isinstance(value, list):
            raise self._wrong(key, "an array", _KINDS[type(value)])
        if len(value) > items:
            raise self._wrong(key, f"at most {items} items", str(len(value)))
        return value

    def _integer(self, key: str, value: JsonValue, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self._wrong(key, f"an integer from {minimum} to {maximum}", _KINDS[type(value)])
        return value

    def _octets(self, key: str, value: JsonValue, minimum: int, maximum: int) -> bytes:
        if not isinstance(value, str):
            raise self._wrong(key, "base64url", _KINDS[type(value)])
        data = b64decode(value)
        if not minimum <= len(data) <= maximum:
            raise self._wrong(key, f"{minimum} to {maximum} bytes", str(len(data)))
        return data

    def _wrong(self, key: str, expected: str, got: str) -> Denied:
        return _malformed(f"{self.where}, {key}", expected, got)


_KINDS: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a fraction",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def _not_canonical(got: str) -> Denied:
    return Denied(Reason.EVIDENCE_MALFORMED, expected="one canonical JSON object", got=got, remedy=_REMEDY)


def _malformed(where: str, expected: str, got: str) -> Denied:
    return Denied(Reason.EVIDENCE_MALFORMED, expected=f"{where}: {expected}", got=got, remedy=_REMEDY)
