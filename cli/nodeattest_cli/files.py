"""Files that a command is given: read whole up to a limit; ``-`` is standard input, which is read once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.errors import UserError

MAX_FILE: Final = 8 << 20
"""Bytes of a file with objects; one object has at most 1.5 MiB in etcd."""


def file_name(path: str) -> str:
    """Name a file in a message."""
    return "standard input" if path == "-" else path


def read_bounded(path: str, limit: int = MAX_FILE) -> bytes:
    """Read a file."""
    try:
        if path == "-":
            content = _stdin(limit)
        else:
            with Path(path).open("rb") as file:
                content = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{file_name(path)}: {error.strerror}") from None
    if len(content) > limit:
        raise UserError(f"{file_name(path)}: more than {limit} bytes")
    return content


def read_text(path: str, what: str, *, limit: int = MAX_FILE, encoding: str = "utf-8") -> str:
    """Read a file as text; ``what`` it should be, for the error."""
    try:
        return read_bounded(path, limit).decode(encoding)
    except UnicodeDecodeError:
        raise UserError(f"{file_name(path)}: expected {what}, got no {encoding.upper()}") from None


def _stdin(limit: int) -> bytes:
    """Read standard input; a command that would read it again is refused, since it would be empty."""
    context = click.get_current_context(silent=True)
    if context is not None:
        if __name__ in context.meta:
            raise UserError("expected standard input (-) once, got it twice: write it into a file")
        context.meta[__name__] = True
    return sys.stdin.buffer.read(limit + 1)
