"""What commands print: lines, and with ``-o`` JSON and tables.

Text that somebody else wrote is escaped, so that it makes no line of its own and no terminal obeys it.
Source: encoding/json; cli-runtime pkg/printers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Final

import click

from nodeattest_cli.errors import UserError
from nodeattest_parsing.values import JsonValue, visible, visible_lines

_HTML: Final = frozenset("<>&")
"""What Go's encoding/json escapes besides, so that JSON can be embedded in HTML."""


def print_lines(*lines: str, err: bool = False) -> None:
    """Print each as one line, whatever servers and files put into it."""
    click.echo(visible_lines(*lines), err=err, nl=False)


def print_document(written: str) -> None:
    """Print what one of the writers below made; it ends with a line end."""
    if written:
        click.echo(visible_lines(*written.removesuffix("\n").split("\n")), nl=False)


def print_exactly(text: str) -> None:
    """Print a file as it is, to the byte; on a terminal what that obeys is escaped."""
    if sys.stdout.isatty():
        print_document(text)
    else:
        click.echo(text, nl=False, color=True)  # click would take what looks like colours from it


def is_confirmed(question: str) -> bool:
    """Ask; raises ``UserError`` where nobody answers."""
    try:
        return click.confirm(question, default=False)
    except click.Abort:
        raise UserError("no answer; without a terminal, set --yes") from None


def to_json(value: JsonValue, *, indent: int | None = 2) -> str:
    """Write JSON, without a line end after it."""
    return "".join(map(_escaped, json.dumps(value, indent=indent, ensure_ascii=False)))


def format_table(rows: Sequence[Sequence[str]], *, gap: int = 3) -> list[str]:
    """Make a line of each row, the headings first; a column is as wide as its widest cell."""
    shown = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["".join(cell.ljust(width + gap) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]


def format_fields(fields: Sequence[tuple[str, str]], *, indent: int = 2) -> list[str]:
    """Make a line of each name and value, the values in one column."""
    return [" " * indent + line for line in format_table([(name, value) for name, value in fields], gap=2)]


def _escaped(one: str) -> str:
    if one == "\n" or (one.isprintable() and one not in _HTML):
        return one
    units = one.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
