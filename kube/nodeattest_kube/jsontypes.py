"""The types of raw JSON, and the one parser that turns an API server's bytes into them.

Promises: bytes give a value or ``ValueError``, whatever they are (a workload cluster's API server may be hostile);
every number fits where Kubernetes would put it (int64, a finite float), so that converting one cannot fail.
Leaves to others: what the objects mean. Source: RFC 8259; api-conventions.md of Kubernetes.
"""

from __future__ import annotations

from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject

_LONGEST_VERSION: Final = 20
"""Digits of an unsigned number of 64 bits."""


class TooManyValues(ValueError):
    """A document that may hold more values than its reader wants to have in memory."""


def parse_json(body: bytes, max_values: int | None = None, *, duplicates: bool = False) -> JsonObject:
    """Parse one JSON object; every other input is a ``ValueError`` that quotes none of it.

    ``max_values`` bounds time and memory: it is held against the brackets and commas outside texts.
    ``duplicates`` lets the last of duplicate keys win, as Go does: for an API server's own answers only.
    """
    if max_values is not None and strict_json.bound_values(body, max_values) is None:
        raise TooManyValues(f"a JSON document of more than {max_values} values")
    return strict_json.parse_object(body, max_size=None, floats=True, duplicates=duplicates)


def version_of(item: JsonObject) -> tuple[str, str]:
    """Tell one state of one object from every other: its UID and its opaque resourceVersion."""
    return text(item, "metadata", "uid"), text(item, "metadata", "resourceVersion")


def is_before(version: str, other: str) -> bool:
    """Tell whether a resourceVersion is an earlier one, if both are numbers (KEP-5504)."""
    if not all(each.isascii() and each.isdecimal() and len(each) <= _LONGEST_VERSION for each in (version, other)):
        return False
    return int(version) < int(other)
