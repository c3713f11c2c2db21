"""Bootstrap tokens as a table: kubeadm's columns, each as wide as its widest cell.

Promises: one line a token; nothing that stands in a Secret can move the cursor or begin a line of its own.
Source: kubernetes cmd/kubeadm/app/cmd/token.go, whose columns drift where a cell is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from nodeattest_cli.token.model import TokenView
from nodeattest_parsing.times import format_rfc3339

__all__ = ["short", "table"]

_HEADINGS: Final = ("TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS")
_GAP: Final = 3
_WIDTHS: Final = (23, 9, 20, 22, 56, 0)
"""The least, which are kubeadm's own, so that most lines are the same; 56 is the description that it gives."""
_NONE: Final = "<none>"
_DAY_HOURS, _YEAR_HOURS = 24, 24 * 365
_ALMOST_NOW: Final = -1
"""Seconds in the past that still count as now: clocks differ."""


def table(tokens: Sequence[TokenView], now: datetime) -> str:
    """Write the table; nothing where there are no tokens."""
    if not tokens:
        return ""
    rows = [_HEADINGS, *(_row(token, now) for token in tokens)]
    widths = [max(least, *(len(row[column]) for row in rows)) for column, least in enumerate(_WIDTHS)]
    return "".join(_line(row, widths) for row in rows)


def short(seconds: float) -> str:
    """Write a time to live in its largest unit: ``59m``, ``23h``, ``3d``; ``<invalid>`` for what is past."""
    whole = int(seconds)
    if whole < _ALMOST_NOW:
        return "<invalid>"
    for size, unit, below in ((1, "s", 60), (60, "m", 60), (3600, "h", _DAY_HOURS)):
        if whole < size * below:
            return f"{max(whole, 0) // size}{unit}"
    hours = whole // 3600
    return f"{hours // _DAY_HOURS}d" if hours < _YEAR_HOURS else f"{hours // _YEAR_HOURS}y"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width + _GAP) for cell, width in zip(row[:-1], widths, strict=False)]
    return "".join([*cells, row[-1]]) + "\n"


def _row(token: TokenView, now: datetime) -> tuple[str, ...]:
    ttl, expires = "<forever>", "<never>"
    if token.expires is not None:
        ttl, expires = short((token.expires - now).total_seconds()), format_rfc3339(token.expires)
    words = (token.token.reveal(), ttl, expires, ",".join(token.usages), token.description, ",".join(token.groups))
    return tuple(_printable(word) or _NONE for word in words)


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
