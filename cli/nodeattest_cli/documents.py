"""Files that a command is given, and the Kubernetes objects in them; ``-`` is standard input, which is read once.

Any bytes give objects or ``UserError``. Lists are taken apart, and times stay text. A key that stands twice is an
error, since parsers differ in which one counts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.output import UserError
from nodeattest_parsing import strict_yaml
from nodeattest_parsing.objects import items, text
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import JsonObject, ParseError

MAX_FILE: Final = 8 << 20
"""Bytes of a file with objects; one object has at most 1.5 MiB in etcd."""
_MAX_DEPTH: Final = 64
_MAX_VALUES: Final = 1 << 19
"""Values and keys of all objects of a file."""
_MAX_DOCUMENTS: Final = 1 << 14


def read_objects(path: str) -> list[JsonObject]:
    """Read every object of a file."""
    name = _file_name(path)
    try:
        documents = strict_yaml.parse_objects(
            _read_bounded(path, MAX_FILE),
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


def _parts(document: JsonObject) -> list[JsonObject]:
    return items(document, "items") if text(document, "kind").endswith("List") else [document]


def read_text(path: str, what: str, *, limit: int = MAX_FILE, encoding: str = "utf-8") -> str:
    """Read a file as text; ``what`` it should be, for the error."""
    try:
        return _read_bounded(path, limit).decode(encoding)
    except UnicodeDecodeError:
        raise UserError(f"{_file_name(path)}: expected {what}, got no {encoding.upper()}") from None


def _read_bounded(path: str, limit: int) -> bytes:
    try:
        if path == "-":
            content = _read_stdin(limit)
        else:
            with Path(path).open("rb") as file:
                content = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{_file_name(path)}: {error.strerror}") from None
    if len(content) > limit:
        raise UserError(f"{_file_name(path)}: more than {limit} bytes")
    return content


def _read_stdin(limit: int) -> bytes:
    """Read standard input; a command that would read it again is refused, since it would be empty."""
    context = click.get_current_context(silent=True)
    if context is not None:
        if __name__ in context.meta:
            raise UserError("expected standard input (-) once, got it twice: write it into a file")
        context.meta[__name__] = True
    return sys.stdin.buffer.read(limit + 1)


def _file_name(path: str) -> str:
    return "standard input" if path == "-" else path
