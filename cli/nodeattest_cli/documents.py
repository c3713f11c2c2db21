"""Kubernetes objects from YAML or JSON files, as ``kubectl get -o yaml`` writes them and people edit them.

Promises: objects or ``UserError``; lists are taken apart; a key that stands twice is an error, since the parsers differ
in which one counts; times stay text. Leaves to others what the objects mean.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Final, cast

import yaml

from nodeattest_cli.errors import UserError
from nodeattest_controller.model.objects import items, text
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_kube.yaml_loader import BoundedLoader

__all__ = ["read_objects", "read_text"]

_LIMIT: Final = 8 << 20
"""Bytes of a file; one object has at most 1.5 MiB in etcd."""
_DEPTH: Final = 64
"""Nesting; Kubernetes objects have some ten."""


class _Loader(BoundedLoader):
    """A loader with JSON's values only, that refuses repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        """Build a mapping of distinct keys."""
        seen: set[str] = set()
        for key, _ in node.value:
            word = str(key.value)
            if word in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {word!r} stands twice", problem_mark=key.start_mark)
            seen.add(word)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 2026-01-01T00:00:00Z as a date; Kubernetes' JSON has no dates.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_text(path: str) -> str:
    """Read a file as text; ``-`` is standard input."""
    name = _name(path)
    try:
        return _content(path, name).decode()
    except UnicodeDecodeError:
        raise UserError(f"{name}: expected YAML or JSON, got no UTF-8") from None


def read_objects(path: str, content: str | None = None) -> list[JsonObject]:
    """Read every object of a file, or of what was read from it; ``-`` is standard input."""
    name = _name(path)
    source = _content(path, name) if content is None else content
    try:
        documents = [_plain(document, name) for document in yaml.load_all(source, Loader=_Loader)]
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - PyYAML promises no closed set (an empty !!int is an IndexError); its border
        raise UserError(f"{name}: expected YAML or JSON, got {_problem(error)}") from None
    found = [part for document in documents if document is not None for part in _parts(document, name)]
    if not found:
        raise UserError(f"{name}: expected a Kubernetes object, got none")
    return found


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def _content(path: str, name: str) -> bytes:
    try:
        content = sys.stdin.buffer.read(_LIMIT + 1) if path == "-" else _read(Path(path))
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}") from None
    if len(content) > _LIMIT:
        raise UserError(f"{name}: more than {_LIMIT} bytes")
    return content


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LIMIT + 1)


def _parts(document: JsonValue, name: str) -> list[JsonObject]:
    if not isinstance(document, dict):
        raise UserError(f"{name}: expected a Kubernetes object, got a {type(document).__name__}")
    return items(document, "items") if text(document, "kind").endswith("List") else [document]


def _plain(value: object, name: str, depth: int = 0) -> JsonValue:
    """Take JSON's types only: what YAML knows besides has no business in a Kubernetes object."""
    if depth > _DEPTH:
        raise UserError(f"{name}: nested deeper than {_DEPTH} levels")
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_plain(item, name, depth + 1) for item in cast("list[object]", value)]
        case dict():
            entries = cast("dict[object, object]", value)
            return {str(key): _plain(entry, name, depth + 1) for key, entry in entries.items()}
        case _:
            raise UserError(f"{name}: expected JSON values, got a {type(value).__name__}")


def _problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} (line {error.problem_mark.line + 1})"
    return " ".join(str(error).split())[:200]
