"""YAML of strangers, read strictly: mappings, sequences, text, booleans and null; JSON is part of it.

Promises: text gives a value or ``ValueError``, in time and memory bounded by its length; no aliases, tags, repeated
keys, keys that are no text, numbers, dates or second documents: a kubeconfig has none, and readers differ in them.
Several documents are read where they were asked for.
Where numbers are wanted, they are plain decimal integers, which all readers take alike, and what is a number or truth
value to one reader and text to another is refused.
Source: YAML 1.1 as PyYAML scans it; sigs.k8s.io/yaml refuses repeated keys in strict mode, too.
"""

from __future__ import annotations

import re
from typing import Final, cast

import yaml

from nodeattest_providers.node_interface import JsonObject, JsonValue

__all__ = ["parse_object", "parse_objects"]

_MAX_DEPTH: Final = 16
"""Levels; a kubeconfig has seven."""
_MAX_VALUES: Final = 4096
"""Values and keys; a kubeconfig has dozens, and reading one takes PyYAML some 40 µs."""
_BOOL: Final = "tag:yaml.org,2002:bool"
_NULL: Final = "tag:yaml.org,2002:null"
_STR: Final = "tag:yaml.org,2002:str"
_TRUE: Final = frozenset({"true", "yes", "on"})
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})", re.ASCII)
_BOOLEANS: Final = frozenset({"true", "false", "True", "False", "TRUE", "FALSE"})
_AMBIGUOUS: Final = re.compile(
    r"[-+]?(0[xob]?[0-9a-f_]+|[0-9][0-9_]*(\.[0-9_]*)?(e[-+]?[0-9]+)?|\.[0-9_]+(e[-+]?[0-9]+)?|\.inf|\.nan)|[yn]",
    re.ASCII | re.IGNORECASE,
)
"""Plain scalars that are text to PyYAML, and numbers or truth values to others (go-yaml v2 and v3, YAML 1.2)."""


class _RefusedError(ValueError):
    """YAML, but not what is read here; the message quotes none of it."""


class _Loader(yaml.SafeLoader):
    """A scanner that does not run ahead into nested brackets, which take it quadratic time."""

    values = 0
    """Values and keys read so far."""
    takes_numbers = False

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803 - PyYAML's name
        """Open a bracket."""
        if self.flow_level >= _MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nesting deeper than {_MAX_DEPTH}", problem_mark=self.get_mark())
        super().fetch_flow_collection_start(TokenClass)  # pyright: ignore[reportUnknownMemberType] - its stub leaves it open


def parse_object(text: str, *, numbers: bool = False) -> JsonObject:
    """Read one mapping; every other text is a ``ValueError`` that quotes none of it."""
    found = parse_objects(text, numbers=numbers, most=1)
    if len(found) != 1:
        raise _RefusedError("more or less than one document")
    return found[0]


def parse_objects(text: str, *, numbers: bool = False, most: int) -> list[JsonObject]:
    """Read at most so many documents that are mappings; empty ones between are passed over where many may stand."""
    try:
        loader = _Loader(text)
        loader.takes_numbers = numbers
        values = _documents(loader, most)
    except _RefusedError:
        raise
    except yaml.YAMLError as error:
        raise ValueError(_said(error)) from None
    except (ValueError, OverflowError, RecursionError, IndexError, AttributeError):  # PyYAML lets some of these out
        raise ValueError("no YAML") from None
    found: list[JsonObject] = []
    for value in values:
        if value is None and most > 1:
            continue
        if not isinstance(value, dict):
            raise _RefusedError("no mapping")
        found.append(value)
    return found


def _documents(loader: _Loader, most: int) -> list[JsonValue]:
    values: list[JsonValue] = []
    try:
        _expect(loader, yaml.StreamStartEvent)
        while not loader.check_event(yaml.StreamEndEvent):
            if len(values) == most:
                raise _RefusedError("more or less than one document" if most == 1 else f"more than {most} documents")
            _expect(loader, yaml.DocumentStartEvent)
            values.append(_value(loader, 0))
            _expect(loader, yaml.DocumentEndEvent)
    finally:
        loader.dispose()
    return values


def _next(loader: _Loader) -> yaml.Event:
    take = loader.get_event  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - its stub leaves it open
    return cast("yaml.Event", take())


def _expect(loader: _Loader, kind: type[yaml.Event]) -> None:
    event = _next(loader)
    if not isinstance(event, kind):
        raise _RefusedError("more or less than one document")


def _value(loader: _Loader, depth: int) -> JsonValue:
    event = _next(loader)
    loader.values += 1
    if loader.values > _MAX_VALUES:
        raise _RefusedError(f"more than {_MAX_VALUES} values")
    if depth > _MAX_DEPTH:
        raise _RefusedError(f"nesting deeper than {_MAX_DEPTH}")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(loader, event)
    if isinstance(event, yaml.CollectionStartEvent) and (event.tag or event.anchor):
        raise _RefusedError("a tag or an anchor")
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[JsonValue] = []
        while not loader.check_event(yaml.SequenceEndEvent):
            items.append(_value(loader, depth + 1))
        _next(loader)
        return items
    if isinstance(event, yaml.MappingStartEvent):
        return _mapping(loader, depth)
    raise _RefusedError("an alias, or no value")


def _mapping(loader: _Loader, depth: int) -> JsonObject:
    found: JsonObject = {}
    while not loader.check_event(yaml.MappingEndEvent):
        key = _value(loader, depth + 1)
        if not isinstance(key, str):
            raise _RefusedError("a key that is no text")
        if key in found:
            raise _RefusedError("a repeated key")
        found[key] = _value(loader, depth + 1)
    _next(loader)
    return found


def _scalar(loader: _Loader, event: yaml.ScalarEvent) -> JsonValue:
    if event.tag or event.anchor:
        raise _RefusedError("a tag or an anchor")
    if any("\ud800" <= letter <= "\udfff" for letter in event.value):  # by escape: no reader of UTF-8 has such text
        raise _RefusedError("half a character")
    resolve = loader.resolve  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - its stub leaves it open
    tag = cast("str", resolve(yaml.ScalarNode, event.value, event.implicit))
    if loader.takes_numbers and event.implicit[0]:
        return _plain(event.value, tag)
    if tag == _STR:
        return event.value
    if tag == _BOOL:
        return event.value.lower() in _TRUE
    if tag == _NULL:
        return None
    raise _RefusedError("a number or a date where text, true, false or null may stand")


def _plain(text: str, tag: str) -> JsonValue:
    """Read a scalar without quotes where numbers may stand."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if tag == _BOOL and text in _BOOLEANS:
        return text.lower() == "true"
    if tag == _NULL:
        return None
    if tag == _STR and not _AMBIGUOUS.fullmatch(text):
        return text
    raise _RefusedError("a number, date or truth value that YAML readers take for different things")


def _said(error: yaml.YAMLError) -> str:
    """Say where it went wrong, without the text itself: it may hold a credential."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"no YAML at line {error.problem_mark.line + 1}"
    return "no YAML"
