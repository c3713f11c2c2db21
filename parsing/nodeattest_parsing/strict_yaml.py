"""Strict YAML for untrusted text: any text gives a value or ``ParseError``, in time and memory linear in its length.

No alias, anchor, tag, duplicate key, key that is not text, or lone surrogate. A scalar without quotes that readers of
YAML 1.1 and of YAML 1.2 take for different values is refused. JSON is part of YAML, but for characters beyond U+FFFF
that are written as two escapes. Source: YAML 1.1 as PyYAML scans it; YAML 1.2.2 §10.3; sigs.k8s.io/yaml.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import yaml

from nodeattest_parsing.values import JsonObject, JsonValue, ParseError


class Scalars(Enum):
    """What a scalar without quotes may be, besides text, ``true``, ``false`` and null."""

    TEXT = "text"
    """Nothing else: a kubeconfig for discovery has no number."""
    INTEGERS = "integers"
    """Plain decimal integers of 64 bits."""
    KUBERNETES = "kubernetes"
    """Integers and plain decimal fractions; dates and times stay text, as sigs.k8s.io/yaml has them."""


_BOOL: Final = "tag:yaml.org,2002:bool"
_NULL: Final = "tag:yaml.org,2002:null"
_STR: Final = "tag:yaml.org,2002:str"
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_FRACTION: Final = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+([eE][-+][0-9]+)?", re.ASCII)
"""A number that JSON, YAML 1.1, YAML 1.2 and PyYAML read alike."""
_BOOLEANS: Final = frozenset({"true", "false", "True", "False", "TRUE", "FALSE"})
_AMBIGUOUS: Final = re.compile(
    r"[-+]?(0x[0-9a-f_]+|0o[0-7_]+|0b[01_]+|[0-9][0-9_]*(\.[0-9_]*)?(e[-+]?[0-9]+)?|\.[0-9_]+(e[-+]?[0-9]+)?|\.inf|\.nan)|[yn]",
    re.ASCII | re.IGNORECASE,
)
"""Scalars that are text to PyYAML, and numbers or booleans to others (go-yaml v2 and v3, YAML 1.2)."""
_EXPECTED: Final = "YAML"


class _Scanner(yaml.SafeLoader):
    """A scanner that does not run ahead into nested brackets, which take it quadratic time."""

    max_depth = 0

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803 - PyYAML's name
        if self.flow_level >= self.max_depth:
            raise ParseError(_EXPECTED, f"nesting deeper than {self.max_depth}", _line(self.get_mark()))
        super().fetch_flow_collection_start(TokenClass)  # pyright: ignore[reportUnknownMemberType] - its stub leaves it open


def parse_documents(
    text: str | bytes, scalars: Scalars, *, max_depth: int, max_values: int, max_documents: int
) -> list[JsonValue]:
    try:
        decoded = text if isinstance(text, str) else text.decode()  # PyYAML would guess UTF-16
        scanner = _Scanner(decoded)
        scanner.max_depth = max_depth
        return _Reader(scanner, scalars, max_depth, max_values).documents(max_documents)
    except ParseError:
        raise
    except UnicodeDecodeError as error:
        raise ParseError("UTF-8", "bytes that are not UTF-8", f"byte {error.start}") from None
    except yaml.MarkedYAMLError as error:
        raise ParseError(_EXPECTED, "no YAML", _line(error.problem_mark)) from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, IndexError, AttributeError):
        raise ParseError(_EXPECTED, "no YAML") from None  # PyYAML lets errors of its own code out


@dataclass(slots=True)
class _Reader:
    scanner: Any
    """A ``_Scanner``, of whose methods PyYAML's stub leaves the types open."""
    scalars: Scalars
    max_depth: int
    max_values: int
    count: int = 0
    """Values and keys so far."""

    def documents(self, max_documents: int) -> list[JsonValue]:
        values: list[JsonValue] = []
        try:
            self.scanner.get_event()  # the stream's start
            while not self.scanner.check_event(yaml.StreamEndEvent):
                if len(values) == max_documents:
                    raise ParseError(f"at most {max_documents} documents", "more documents")
                self.scanner.get_event()  # the document's start
                values.append(self._value(0))
                self.scanner.get_event()  # its end
        finally:
            self.scanner.dispose()
        return values

    def _value(self, depth: int) -> JsonValue:
        event = self.scanner.get_event()
        self.count += 1
        if self.count > self.max_values:
            raise ParseError("fewer values", f"more than {self.max_values} values")
        if depth > self.max_depth:
            raise ParseError("less nesting", f"nesting deeper than {self.max_depth}", _line(event.start_mark))
        if isinstance(event, yaml.AliasEvent):
            raise ParseError("a value", "an alias, which JSON does not have", _line(event.start_mark))
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and (event.tag or event.anchor):
            got = "an anchor" if event.anchor else "a tag"
            raise ParseError("values without tags and anchors", got, _line(event.start_mark))
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[JsonValue] = []
            while not self.scanner.check_event(yaml.SequenceEndEvent):
                items.append(self._value(depth + 1))
            self.scanner.get_event()
            return items
        return self._mapping(depth)

    def _mapping(self, depth: int) -> JsonObject:
        found: JsonObject = {}
        while not self.scanner.check_event(yaml.MappingEndEvent):
            mark = self.scanner.peek_event().start_mark
            key = self._value(depth + 1)
            if not isinstance(key, str):
                raise ParseError("keys that are text, numbers in quotes", "a key that is not text", _line(mark))
            if key in found:
                raise ParseError("each key once", "a duplicate key", _line(mark))
            found[key] = self._value(depth + 1)
        self.scanner.get_event()
        return found

    def _scalar(self, event: yaml.ScalarEvent) -> JsonValue:
        if any("\ud800" <= letter <= "\udfff" for letter in event.value):  # by escape: no reader of UTF-8 has such text
            raise ParseError("Unicode", "a lone surrogate", _line(event.start_mark))
        if not event.implicit[0]:  # in quotes, or a block
            return event.value
        return self._plain(event, self.scanner.resolve(yaml.ScalarNode, event.value, event.implicit))

    def _plain(self, event: yaml.ScalarEvent, tag: str) -> JsonValue:
        text = event.value
        if tag == _NULL:
            return None
        if tag == _BOOL and text in _BOOLEANS:
            return text.lower() == "true"
        if self.scalars is not Scalars.TEXT and _INTEGER.fullmatch(text) and _INT64_MIN <= int(text) <= _INT64_MAX:
            return int(text)
        if self.scalars is Scalars.KUBERNETES:
            if tag == _TIMESTAMP:
                return text
            if _FRACTION.fullmatch(text) and math.isfinite(float(text)):
                return float(text)
        if tag == _STR and not _AMBIGUOUS.fullmatch(text):
            return text
        got = "a number, date or boolean that is not taken here, or that YAML readers read differently"
        raise ParseError("text in quotes", got, _line(event.start_mark))


def _line(mark: Any) -> str | None:  # noqa: ANN401 - PyYAML has two classes for it
    return None if mark is None else f"line {mark.line + 1}"


def parse_object(text: str | bytes, *, scalars: Scalars, max_depth: int, max_values: int) -> JsonObject:
    """Parse one document that is a mapping; raises ``ParseError``. ``max_values`` counts keys, too."""
    found = parse_documents(text, scalars, max_depth=max_depth, max_values=max_values, max_documents=1)
    if len(found) != 1:
        raise ParseError("one document", "no document")
    return _mapping(found[0])


def parse_objects(
    text: str | bytes, *, scalars: Scalars, max_depth: int, max_values: int, max_documents: int
) -> list[JsonObject]:
    """Parse documents that are mappings; empty documents are left out. Raises ``ParseError``."""
    found = parse_documents(text, scalars, max_depth=max_depth, max_values=max_values, max_documents=max_documents)
    return [_mapping(value) for value in found if value is not None]


def _mapping(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        kinds: dict[type, str] = {type(None): "nothing", str: "text", list: "a list"}
        raise ParseError("a mapping", kinds.get(type(value), "a number or a boolean"))
    return value
