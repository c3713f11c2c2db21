"""Strict JSON: any bytes give a value or ``ParseError``, in time linear in their length.

UTF-8 only, one value, no duplicate key unless allowed, no NaN, no lone surrogate, 64-bit integers, and finite floats
where the caller takes floats. Size, depth and number of values are bounded as the caller says.
Source: RFC 8259 §4, §6, §8.1, §9; RFC 7493.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Final, NoReturn

from nodeattest_parsing.values import JsonObject, JsonValue, ParseError

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_INTEGER_LENGTH: Final = 20
"""Characters of the longest int64 or uint64: longer digits are refused before they are converted."""
_FLOAT_LENGTH: Final = 64
"""The same of a float: Go and Python write 25 at most, and one of hundreds of digits takes as long as fifty others."""
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD]")
"""The only spelling in which a lone surrogate can enter a string out of well-formed UTF-8."""
_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A text, also one without an end, and possessive: no input is read twice."""
_SOME_TEXTS: Final = re.compile(rb'(?:[^"]*+%b){1,4096}+' % _TEXT.pattern, re.DOTALL)
"""So many texts and what is between them: taking texts out costs 200 bytes for each at once."""
_EXPECTED: Final = "JSON"


def parse(
    data: bytes | str,
    *,
    max_size: int | None,
    max_depth: int | None = None,
    max_values: int | None = None,
    floats: bool = False,
    duplicates: bool = False,
) -> JsonValue:
    """Parse one JSON value; raises ``ParseError``.

    ``max_size`` is in bytes (characters of a ``str``); None where the caller has bounded it already. ``max_depth``
    counts the outermost array or object; None leaves the interpreter's own bound, some hundreds. ``max_values`` counts
    objects, arrays, strings, numbers and literals. ``floats`` allows numbers that are no integers, and unsigned 64-bit
    integers. ``duplicates`` lets the last of duplicate keys win.
    """
    if max_size is not None and len(data) > max_size:
        raise ParseError(f"at most {max_size} bytes", f"{len(data)} bytes")
    if max_values is not None and bound_values(data, 2 * max_values) is None:  # twice: [] and {} count as two there
        raise _too_many(max_values)
    hooks = _Hooks(floats=floats)
    decoder = json.JSONDecoder(
        object_pairs_hook=None if duplicates else hooks.object,
        parse_int=hooks.integer,
        parse_float=hooks.number,
        parse_constant=_refuse_constant,
    )
    try:
        text = data if isinstance(data, str) else data.decode()  # never bytes: json.loads would guess UTF-16 and UTF-32
        value: JsonValue = decoder.decode(text)
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ParseError("UTF-8", "bytes that are not UTF-8", f"byte {error.start}") from None
    except UnicodeEncodeError:
        raise ParseError(_EXPECTED, "a lone surrogate") from None
    except json.JSONDecodeError as error:
        raise ParseError(_EXPECTED, "text that is not JSON", f"line {error.lineno} column {error.colno}") from None
    except RecursionError:  # json's own answer to nesting that it cannot follow
        raise _too_deep(max_depth) from None
    if max_depth is not None or max_values is not None:
        check(value, max_depth=max_depth, max_values=max_values, floats=floats)
    return value


def parse_object(
    data: bytes | str,
    *,
    max_size: int | None,
    max_depth: int | None = None,
    max_values: int | None = None,
    floats: bool = False,
    duplicates: bool = False,
) -> JsonObject:
    """Parse one JSON object, as ``parse`` does; every other value is a ``ParseError``, too."""
    value: JsonValue = parse(
        data, max_size=max_size, max_depth=max_depth, max_values=max_values, floats=floats, duplicates=duplicates
    )
    if not isinstance(value, dict):
        raise ParseError("a JSON object", "a JSON value that is not an object")
    return value


def check(value: JsonValue, *, max_depth: int | None, max_values: int | None, floats: bool = False) -> None:
    """Check a value that our own code made by the rules of ``parse``, level by level; raises ``ParseError``."""
    level = [value]
    count = depth = 0
    while level:
        depth += 1
        count += len(level)
        if max_values is not None and count > max_values:
            raise _too_many(max_values)
        containers = [inner for inner in (_inner_values(each, floats) for each in level) if inner is not None]
        if containers and max_depth is not None and depth > max_depth:
            raise _too_deep(max_depth)
        level = [each for inner in containers for each in inner]


def bound_values(data: bytes | str, most: int) -> int | None:
    """Bound the number of a document's values without reading it; None: more than ``most``.

    A value takes a comma or a bracket outside texts, and an empty array or object two: ``[]`` takes 2 bytes, and 70 of
    memory.
    """
    body = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    bound = _separators(body)
    if bound <= most:
        return bound
    bound = texts = end = 0
    while (some := _SOME_TEXTS.match(body, end)) is not None:
        bare, found = _TEXT.subn(b"", some.group())
        bound, texts, end = bound + _separators(bare) - 1, texts + found, some.end()
        if bound >= most or texts > 2 * most:  # a value has one key at most
            return None
    bound += _separators(body[end:])
    return bound if bound <= most else None


def _separators(body: bytes) -> int:
    return 1 + sum(map(body.count, (b",", b"[", b"{")))


class _Hooks:
    """What ``json`` calls for objects and numbers."""

    def __init__(self, *, floats: bool) -> None:
        self._floats = floats

    def object(self, pairs: list[tuple[str, JsonValue]]) -> JsonObject:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise ParseError("each key once", "a duplicate key")
        return value

    def integer(self, digits: str) -> int:
        value = int(digits) if len(digits) <= _INTEGER_LENGTH else None
        if value is None or not (self._floats or _INT64_MIN <= value <= _INT64_MAX):
            raise ParseError("an integer of 64 bits", "an integer beyond 64 bits")
        return value

    def number(self, text: str) -> float:
        value = float(text) if self._floats and len(text) <= _FLOAT_LENGTH else math.nan
        if not math.isfinite(value):
            got = "a number beyond a 64-bit float, or too long" if self._floats else "a number that is not an integer"
            raise ParseError("a number that fits", got)
        return value


def _refuse_constant(_name: str) -> NoReturn:
    """Refuse NaN and the infinities (RFC 8259 §6)."""
    raise ParseError(_EXPECTED, "a number that JSON does not have")


def _inner_values(value: JsonValue, floats: bool) -> Iterable[JsonValue] | None:
    match value:
        case None | bool() | str():
            return None
        case int():
            if not (floats or _INT64_MIN <= value <= _INT64_MAX):
                raise ParseError("an integer of 64 bits", "an integer beyond 64 bits")
            return None
        case float() if floats and math.isfinite(value):
            return None
        case list():
            return value
        case dict():
            return value.values()
        case _:
            raise ParseError("JSON whose numbers are integers", "a number that is not an integer")


def _too_deep(max_depth: int | None) -> ParseError:
    bound = "this interpreter follows" if max_depth is None else str(max_depth)
    return ParseError("less nesting", f"nesting deeper than {bound}")


def _too_many(max_values: int | None) -> ParseError:
    return ParseError("fewer values", f"more than {max_values} values")
