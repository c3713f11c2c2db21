"""What commands print, and how they end: lines, JSON and tables; exit codes, and the exceptions that lead to them.

Text that somebody else wrote is escaped, so that it makes no line of its own and no terminal obeys it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import IntEnum
from http import HTTPStatus
from typing import Final

import click

from nodeattest_kube.errors import ApiError
from nodeattest_parsing.values import JsonValue, visible, visible_lines
from nodeattest_providers.errors import Denied

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


def listed(names: Iterable[str], *, most: int = 8, between: str = ", ") -> str:
    """Name the first of several, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return between.join(found[:most]) + more


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


# Exit codes and errors


class ExitCode(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    REFUSED = 1
    """What was found does not allow it, or is wrong; the same command will end the same way until that changes."""
    USAGE = 2
    """The command, a file or a kubeconfig is wrong, or a package is not installed; nobody was asked to change
    anything."""
    NO_ACCESS = 3
    """Not reachable, not allowed, or not yet: the same command may succeed later or with other rights."""
    INTERRUPTED = 130
    """128 + SIGINT, as shells say it."""


class UserError(Exception):
    """What was asked for cannot be done as it was asked."""

    code = ExitCode.USAGE


class StateError(UserError):
    """What was found does not allow it."""

    code = ExitCode.REFUSED


class AccessError(UserError):
    """A server was not reached, or did not allow it."""

    code = ExitCode.NO_ACCESS


_FOUND = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.UNPROCESSABLE_ENTITY})
"""Answers about the objects, not about the way to them."""


def api_error(error: ApiError, hint: str = "") -> UserError:
    """Make the error for an API server's answer; ``hint`` follows the message."""
    kind = StateError if error.status in _FOUND else AccessError
    return kind(f"{error}; {hint}" if hint else str(error))


@contextmanager
def user_errors(what: str) -> Generator[None]:
    """Turn a ``Denied`` within the block into an error about ``what``, without its reason."""
    try:
        yield
    except Denied as denied:
        raise UserError(f"{what}: expected {denied.expected}, got {denied.got}; {denied.remedy}") from None
