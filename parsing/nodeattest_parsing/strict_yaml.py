"""Strict YAML for untrusted text: mappings, sequences, text, booleans, null and, where asked for, numbers.

Promises: a text gives a value or ``ParseError``, in time and memory linear in its length; depth and number of values
are bounded. No alias, anchor, tag, duplicate key, key that is not text, or lone surrogate. A scalar without quotes that
readers of YAML 1.1 and of YAML 1.2 take for different values is refused: ``yes``, ``on``, ``1:30`` (sexagesimal),
``0o17``, ``017``, ``1_000``, ``1e3``. In quotes each of them is text. JSON is part of YAML, but for characters beyond
U+FFFF that are written as two escapes. PyYAML is imported when the first text is parsed.
Source: YAML 1.1 as PyYAML scans it; YAML 1.2.2 §10.3 (core schema); sigs.k8s.io/yaml, whose strict mode refuses
duplicate keys, too.
"""

from __future__ import annotations

from typing import Literal, overload

from nodeattest_parsing.errors import ParseError
from nodeattest_parsing.values import IntegerJsonObject, JsonObject, JsonValue
from nodeattest_parsing.yaml_scalars import Scalars

__all__ = ["Scalars", "parse_object", "parse_objects"]


@overload
def parse_object(
    text: str | bytes, *, scalars: Literal[Scalars.KUBERNETES], max_depth: int, max_values: int
) -> JsonObject: ...
@overload
def parse_object(
    text: str | bytes, *, scalars: Literal[Scalars.TEXT, Scalars.INTEGERS], max_depth: int, max_values: int
) -> IntegerJsonObject: ...
def parse_object(
    text: str | bytes, *, scalars: Scalars, max_depth: int, max_values: int
) -> JsonObject | IntegerJsonObject:
    """Parse one document that is a mapping; raises ``ParseError``. ``max_values`` counts keys, too."""
    from nodeattest_parsing.yaml_events import parse_documents

    found = parse_documents(text, scalars, max_depth=max_depth, max_values=max_values, max_documents=1)
    if len(found) != 1:
        raise ParseError("one document", "no document")
    [value] = found
    if not isinstance(value, dict):
        raise ParseError("a mapping", _kind(value))
    return value


@overload
def parse_objects(
    text: str | bytes, *, scalars: Literal[Scalars.KUBERNETES], max_depth: int, max_values: int, max_documents: int
) -> list[JsonObject]: ...
@overload
def parse_objects(
    text: str | bytes,
    *,
    scalars: Literal[Scalars.TEXT, Scalars.INTEGERS],
    max_depth: int,
    max_values: int,
    max_documents: int,
) -> list[IntegerJsonObject]: ...
def parse_objects(
    text: str | bytes, *, scalars: Scalars, max_depth: int, max_values: int, max_documents: int
) -> list[JsonObject] | list[IntegerJsonObject]:
    """Parse documents that are mappings; empty documents are left out. Raises ``ParseError``."""
    from nodeattest_parsing.yaml_events import parse_documents

    found: list[JsonObject] = []
    for value in parse_documents(
        text, scalars, max_depth=max_depth, max_values=max_values, max_documents=max_documents
    ):
        if isinstance(value, dict):
            found.append(value)
        elif value is not None:
            raise ParseError("a mapping", _kind(value))
    return found


def _kind(value: JsonValue) -> str:
    match value:
        case None:
            return "nothing"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a number or a boolean"
