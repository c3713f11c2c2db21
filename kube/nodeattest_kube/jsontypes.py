"""The types of raw JSON, and the one parser that turns an API server's bytes into them.

Promises: bytes give a value or ``ValueError``, whatever they are (a workload cluster's API server may be hostile);
every number fits where Kubernetes would put it (int64, a finite float), so that converting one cannot fail.
Leaves to others: what the objects mean. Source: RFC 8259; api-conventions.md of Kubernetes.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final, NoReturn, cast

__all__ = [
    "JsonObject",
    "JsonValue",
    "TooManyValues",
    "dig",
    "dig_text",
    "has_more_values",
    "key_of",
    "parse_json",
    "version_of",
]

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]

_INTEGER_LENGTH: Final = 20
"""Characters of the longest int64 or uint64."""

# The only spellings in which a lone UTF-16 surrogate can enter a Python string out of well-formed UTF-8.
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD]")


class TooManyValues(ValueError):
    """A document that may hold more values than its reader wants to have in memory."""


def parse_json(body: bytes, max_values: int | None = None) -> JsonObject:
    """Parse one JSON object; every other input is a ``ValueError`` that quotes none of it.

    ``max_values`` bounds time and memory: it is held against the brackets and commas, so commas in texts count too.
    """
    if max_values is not None and has_more_values(body, max_values):
        raise TooManyValues(f"a JSON document of more than {max_values} values")
    try:
        value = cast("JsonValue", _DECODER.decode(body.decode()))
        if _SURROGATE_ESCAPE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # UnicodeError and JSONDecodeError are ValueErrors
        raise ValueError(f"not a JSON document ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__} instead of an object")  # noqa: TRY004 - one error for all bad bytes
    return value


def has_more_values(body: bytes, most: int) -> bool:
    """Whether a document may hold more values than that; each costs a byte at least, and a bracket or a comma."""
    return len(body) > most and 1 + sum(body.count(each) for each in (b",", b"{", b"[")) > most


def _refuse_constant(_name: str) -> NoReturn:
    """Refuse NaN and the infinities, which JSON has not (RFC 8259 §6)."""
    raise ValueError("not a JSON number")


def _integer(text: str) -> int:
    """Read an integer; Go's decoders have none of more than 64 bits."""
    if len(text) > _INTEGER_LENGTH:
        raise ValueError("not a 64-bit integer")
    return int(text)


def _number(text: str) -> float:
    """Read any other number; Go refuses what a float64 cannot hold."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not a 64-bit float")
    return value


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_integer, parse_float=_number)


def dig(value: JsonValue, *path: str) -> JsonValue:
    """Follow field names into nested objects; None where the way ends early."""
    for field in path:
        if not isinstance(value, dict):
            return None
        value = value.get(field)
    return value


def dig_text(value: JsonValue, *path: str) -> str:
    """Follow field names to a string; the empty string where there is none (Go's zero value)."""
    found = dig(value, *path)
    return found if isinstance(found, str) else ""


def key_of(item: JsonObject) -> str:
    """Name an object within its collection: ``namespace/name``, or ``name`` when it has no namespace."""
    namespace, name = dig_text(item, "metadata", "namespace"), dig_text(item, "metadata", "name")
    return f"{namespace}/{name}" if namespace else name


def version_of(item: JsonObject) -> tuple[str, str]:
    """Tell one state of one object from every other: its UID and its opaque resourceVersion."""
    return dig_text(item, "metadata", "uid"), dig_text(item, "metadata", "resourceVersion")
