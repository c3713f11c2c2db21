"""JSONPath as kubectl and kubeadm print with it: paths, indexes, slices, ``range`` and literals.

Promises: a template is compiled or ``ValueError`` names what it may hold; filters, recursive descent and unions are
such errors rather than guesses. A missing field prints nothing unless the caller says otherwise.
Source: k8s.io/client-go util/jsonpath; https://kubernetes.io/docs/reference/kubectl/jsonpath/.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nodeattest_kube.jsontypes import JsonValue

__all__ = ["Template", "compile_template"]

_SUPPORTED: Final = (
    "texts, {.a.b}, {['a']}, {.a[0]}, {.a[*]}, {.a[0:2]}, {\"text\"} and {range …}{end}; no filters, no .., no unions"
)
_STEP: Final = re.compile(
    r"""\.(?P<field>(?:[A-Za-z0-9_/-]|\\.)+)|\[(?:(?P<quoted>'[^'\\]*'|"[^"\\]*")|(?P<all>\*)"""
    r"""|(?P<slice>-?\d*:-?\d*)|(?P<index>-?\d+))\]|(?P<every>\.\*)""",
    re.ASCII,
)
_QUOTED: Final = re.compile(r"'(?P<single>(?:[^'\\]|\\.)*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\"", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|(?P<one>.))", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_SAME: Final = frozenset("\\'\"")
_MAX_LENGTH: Final = 4096
"""Characters of a template."""


@dataclass(frozen=True, slots=True)
class _Text:
    text: str


@dataclass(frozen=True, slots=True)
class _Path:
    steps: tuple[str | int | slice, ...]
    source: str


@dataclass(frozen=True, slots=True)
class _Range:
    path: _Path
    body: tuple[_Node, ...]


_Node = _Text | _Path | _Range
_EVERY: Final = slice(None)


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template."""

    nodes: tuple[_Node, ...]

    def render(self, value: JsonValue, *, missing_is_empty: bool = True) -> str:
        """Print what the paths select; several values of one path with a space between."""
        return "".join(" ".join(map(_shown, found)) for found in self.select(value, missing_is_empty=missing_is_empty))

    def select(self, value: JsonValue, *, missing_is_empty: bool = True) -> Iterator[list[JsonValue]]:
        """Yield what each part selects, in order; raises ``ValueError`` for an index that does not exist."""
        return _walk(self.nodes, value, missing_is_empty)


def compile_template(text: str) -> Template:
    """Compile a template; raises ``ValueError``."""
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"more than {_MAX_LENGTH} characters")
    open_ranges: list[tuple[_Path, list[_Node]]] = []
    nodes: list[_Node] = []
    for part, is_action in _parts(text):
        word = part.strip() if is_action else part
        if not is_action:
            nodes.append(_Text(part))
        elif word.startswith("range "):
            open_ranges.append((_path(word.removeprefix("range ").strip()), nodes))
            nodes = []
        elif word == "end":
            if not open_ranges:
                raise ValueError("an {end} without its {range}")
            path, outer = open_ranges.pop()
            nodes = [*outer, _Range(path, tuple(nodes))]
        else:
            nodes.append(_literal(word) or _path(word))
    if open_ranges:
        raise ValueError("a {range} without its {end}")
    return Template(tuple(nodes))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield texts and what stands in braces, in which quotes may hold braces."""
    position = 0
    while position < len(text):
        opening = text.find("{", position)
        if opening != position:
            end = len(text) if opening < 0 else opening
            yield text[position:end], False
            position = end
            continue
        end = opening + 1
        while end < len(text) and text[end] != "}":
            quoted = _QUOTED.match(text, end)
            end = quoted.end() if quoted else end + 1
        if end >= len(text):
            raise ValueError("a { without its }")
        yield text[opening + 1 : end], True
        position = end + 1


def _literal(word: str) -> _Text | None:
    found = _QUOTED.fullmatch(word)
    if found is None:
        return None
    inner = found["single"] if found["double"] is None else found["double"]
    return _Text(_ESCAPE.sub(_unescape, inner))


def _unescape(found: re.Match[str]) -> str:
    if found["x"] or found["u"]:
        return chr(int(found["x"] or found["u"], 16))
    one = found["one"]
    if one in _ESCAPES:
        return _ESCAPES[one]
    if one not in _SAME:
        raise ValueError(f"the escape \\{ascii(one)[1:-1]}; known are \\n, \\t, \\r, \\\\, quotes, \\x.. and \\u....")
    return one


def _path(word: str) -> _Path:
    if word[:1] in {"$", "@"}:
        rest = word[1:]
    elif word[:1] in {".", "["}:
        rest = "" if word == "." else word
    elif not word:
        rest = ""
    else:
        rest = f".{word}"
    steps: list[str | int | slice] = []
    position = 0
    while position < len(rest):
        found = _STEP.match(rest, position)
        if found is None:
            raise ValueError(f"{ascii(word[:80])[1:-1]} is beyond what is understood here: {_SUPPORTED}")
        steps.append(_step(found))
        position = found.end()
    return _Path(tuple(steps), word)


def _step(found: re.Match[str]) -> str | int | slice:
    if found["field"] is not None:
        return re.sub(r"\\(.)", r"\1", found["field"])
    if found["quoted"] is not None:
        return found["quoted"][1:-1]
    if found["index"] is not None:
        return int(found["index"])
    if found["slice"] is not None:
        start, _, stop = found["slice"].partition(":")
        return slice(int(start) if start else None, int(stop) if stop else None)
    return _EVERY


def _walk(nodes: Sequence[_Node], value: JsonValue, missing_is_empty: bool) -> Iterator[list[JsonValue]]:
    for node in nodes:
        if isinstance(node, _Text):
            yield [node.text]
        elif isinstance(node, _Path):
            yield _select(node, value, missing_is_empty)
        else:
            for one in _select(node.path, value, missing_is_empty):
                yield from _walk(node.body, one, missing_is_empty)


def _select(path: _Path, value: JsonValue, missing_is_empty: bool) -> list[JsonValue]:
    found = [value]
    for step in path.steps:
        found = [one for holder in found for one in _members(holder, step)]
        if not found and not missing_is_empty:
            raise ValueError(f"{ascii(path.source)[1:-1]} is not found")
    return found


def _members(holder: JsonValue, step: str | int | slice) -> list[JsonValue]:
    if isinstance(step, str):
        return [holder[step]] if isinstance(holder, dict) and step in holder else []
    if isinstance(holder, dict) and step == _EVERY:
        return [holder[key] for key in sorted(holder)]
    if not isinstance(holder, list):
        return []
    if isinstance(step, slice):
        return holder[step]
    if holder and not -len(holder) <= step < len(holder):
        raise ValueError(f"the index {step} of a list of {len(holder)}")
    return [holder[step]] if holder else []


def _shown(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "<nil>"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
