"""Kubernetes objects from YAML or JSON files, as ``kubectl get -o yaml`` writes them and people edit them.

Promises: objects or ``UserError``; lists are taken apart; a key that stands twice is an error, since the parsers differ
in which one counts; times stay text. Leaves to others what the objects mean.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.errors import UserError
from nodeattest_parsing import strict_yaml
from nodeattest_parsing.objects import items, text
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import JsonObject, ParseError

MAX_FILE: Final = 8 << 20
"""Bytes of a file; one object has at most 1.5 MiB in etcd."""
_MAX_DEPTH: Final = 64
"""Levels; Kubernetes objects have some ten."""
_MAX_VALUES: Final = 1 << 19
"""Values and keys of all objects of a file."""
_MAX_DOCUMENTS: Final = 1 << 14


def read_text(path: str) -> str:
    """Read a file as text; ``-`` is standard input."""
    name = _name(path)
    try:
        return _content(path, name).decode()
    except UnicodeDecodeError:
        raise UserError(f"{name}: expected YAML or JSON, got no UTF-8") from None


def read_objects(path: str) -> list[JsonObject]:
    """Read every object of a file; ``-`` is standard input."""
    name = _name(path)
    try:
        documents = strict_yaml.parse_objects(
            _content(path, name),
            scalars=Scalars.KUBERNETES,
            max_depth=_MAX_DEPTH,
            max_values=_MAX_VALUES,
            max_documents=_MAX_DOCUMENTS,
        )
    except ParseError as error:
        raise UserError(f"{name}: expected YAML or JSON, got {error.found}; expected {error.expected}") from None
    found = [part for document in documents for part in _parts(document)]
    if not found:
        raise UserError(f"{name}: expected a Kubernetes object, got none")
    return found


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def _content(path: str, name: str) -> bytes:
    try:
        content = _read_stdin() if path == "-" else _read(Path(path))
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}") from None
    if len(content) > MAX_FILE:
        raise UserError(f"{name}: more than {MAX_FILE} bytes")
    return content


def _read_stdin() -> bytes:
    """Read standard input; a command that would read it again is refused, since it would be empty."""
    context = click.get_current_context(silent=True)
    if context is not None:
        if __name__ in context.meta:
            raise UserError("expected standard input (-) once, got it twice: write it into a file")
        context.meta[__name__] = True
    return sys.stdin.buffer.read(MAX_FILE + 1)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE + 1)


def _parts(document: JsonObject) -> list[JsonObject]:
    return items(document, "items") if text(document, "kind").endswith("List") else [document]
