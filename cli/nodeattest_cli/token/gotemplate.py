"""Go templates as far as lists of tokens need them: fields, texts and ``range`` over a field.

Promises: a template is compiled or ``ValueError`` names what it may hold; variables, pipelines and functions are such
errors rather than guesses. A missing field prints ``<no value>``, as Go does.
Source: go/src/text/template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeattest_kube.jsontypes import JsonValue

__all__ = ["Template", "compile_template"]

_SUPPORTED: Final = 'texts, {{.field}}, {{.}}, {{"text"}}, {{`text`}}, {{range .field}}…{{end}} and {{- -}}'
_FIELD: Final = re.compile(r"\.[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*|\.", re.ASCII)
_TEXT: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`')
_PARTS: Final = re.compile(r"""(?:\s*{{-\s+|{{)(?P<action>(?:"(?:[^"\\]|\\.)*"|`[^`]*`|[^"`}])*?)(?:\s-}}\s*|}})""")
"""An action, with the white space that its dashes trim."""
_MAX_LENGTH: Final = 4096
"""Characters of a template."""
_NO_VALUE: Final = "<no value>"


@dataclass(frozen=True, slots=True)
class _Text:
    text: str


@dataclass(frozen=True, slots=True)
class _Field:
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Range:
    field: _Field
    body: tuple[_Node, ...]


_Node = _Text | _Field | _Range


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template."""

    nodes: tuple[_Node, ...]

    def render(self, value: JsonValue, *, missing_is_empty: bool = True) -> str:
        """Print one value; a missing field is ``<no value>``, or ``ValueError`` where it must not be missing."""
        return _render(self.nodes, value, missing_is_empty)


def compile_template(text: str) -> Template:
    """Compile a template; raises ``ValueError``."""
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"more than {_MAX_LENGTH} characters")
    open_ranges: list[tuple[_Field, list[_Node]]] = []
    nodes: list[_Node] = []
    position = 0
    for found in _PARTS.finditer(text):
        nodes.append(_Text(_plain(text[position : found.start()])))
        position = found.end()
        word = found["action"].strip()
        if word.startswith("range "):
            open_ranges.append((_field(word.removeprefix("range ").strip()), nodes))
            nodes = []
        elif word == "end":
            if not open_ranges:
                raise ValueError("an {{end}} without its {{range}}")
            field, outer = open_ranges.pop()
            nodes = [*outer, _Range(field, tuple(nodes))]
        else:
            nodes.append(_literal(word) or _field(word))
    if open_ranges:
        raise ValueError("a {{range}} without its {{end}}")
    return Template((*nodes, _Text(_plain(text[position:]))))


def _plain(text: str) -> str:
    if "{{" in text:
        raise ValueError("a {{ without its }}")
    return text


def _literal(word: str) -> _Text | None:
    if _TEXT.fullmatch(word) is None:
        return None
    if word.startswith("`"):
        return _Text(word[1:-1])
    try:
        return _Text(str(json.loads(word)))  # the escapes that both know: \n \t \r \" \\ \u....
    except ValueError:
        raise ValueError('a text with an escape other than \\n, \\t, \\r, \\", \\\\ and \\u....') from None


def _field(word: str) -> _Field:
    if _FIELD.fullmatch(word) is None:
        raise ValueError(f"{{{{{ascii(word[:80])[1:-1]}}}}} is beyond what is understood here: {_SUPPORTED}")
    return _Field(tuple(name for name in word.split(".") if name))


def _render(nodes: Sequence[_Node], value: JsonValue, missing_is_empty: bool) -> str:
    said: list[str] = []
    for node in nodes:
        if isinstance(node, _Text):
            said.append(node.text)
        elif isinstance(node, _Field):
            said.append(_shown(_value(node, value, missing_is_empty)))
        else:
            found = _value(node.field, value, missing_is_empty)
            said += [_render(node.body, one, missing_is_empty) for one in (found if isinstance(found, list) else [])]
    return "".join(said)


def _value(field: _Field, value: JsonValue, missing_is_empty: bool) -> JsonValue:
    for name in field.path:
        if not isinstance(value, dict) or name not in value:
            if missing_is_empty:
                return None
            raise ValueError(f"there is no {'.'.join(field.path)}")
        value = value[name]
    return value


def _shown(value: JsonValue) -> str:
    """Print as Go's ``fmt`` does with ``%v``."""
    match value:
        case None:
            return _NO_VALUE
        case bool():
            return "true" if value else "false"
        case list():
            return f"[{' '.join(map(_shown, value))}]"
        case dict():
            return f"map[{' '.join(f'{key}:{_shown(value[key])}' for key in sorted(value))}]"
        case _:
            return str(value)
