"""The types of raw JSON, and the one parser that turns an API server's bytes into them.

Promises: bytes give a value or ``ValueError``, whatever they are (a workload cluster's API server may be hostile).
Leaves to others: what the objects mean. Source: RFC 8259; api-conventions.md of Kubernetes.
"""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn, cast

__all__ = ["JsonObject", "JsonValue", "dig", "dig_text", "key_of", "parse_json", "version_of"]

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]

# The only spellings in which a lone UTF-16 surrogate can enter a Python string out of well-formed UTF-8.
_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD]")


def parse_json(body: bytes) -> JsonObject:
    """Parse one JSON object; every other input is a ``ValueError`` that quotes none of it."""
    try:
        value = cast("JsonValue", _DECODER.decode(body.decode()))
        if _SURROGATE_ESCAPE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # UnicodeError and JSONDecodeError are ValueErrors
        raise ValueError(f"not a JSON document ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__} instead of an object")  # noqa: TRY004 - one error for all bad bytes
    return value


def _refuse_constant(_name: str) -> NoReturn:
    """Refuse NaN and the infinities, which JSON has not (RFC 8259 §6)."""
    raise ValueError("not a JSON number")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


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
