"""Durations as options of commands."""

from __future__ import annotations

from typing import Final

from nodeattest_cli.errors import UserError
from nodeattest_parsing.durations import SECOND, parse_duration
from nodeattest_parsing.errors import ParseError

__all__ = ["seconds"]

_LONGEST: Final = 100 * 366 * 86_400
"""Seconds."""


def seconds(option: str, text: str) -> int:
    """Read a duration such as ``8761h``, of whole seconds; raises ``UserError``."""
    try:
        given = parse_duration(text)
    except ParseError as error:
        raise UserError(f"{option}: {error} in {text[:40]!a}") from None
    if given < 0 or given % SECOND or given // SECOND > _LONGEST:
        raise UserError(f"{option}: expected whole seconds from 0 to 100 years, got {text[:40]!a}")
    return given // SECOND
