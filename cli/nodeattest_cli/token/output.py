"""Bootstrap tokens as ``-o`` prints them: kubeadm's formats ``text``, ``json`` and ``yaml``, and two more.

Promises: JSON and YAML are what kubeadm prints, one object after the other; ``json-list`` is one document. The table
has kubeadm's columns, each as wide as its widest cell; nothing that is in a Secret can move the cursor or begin
a line of its own. ``name`` is what kubectl takes.
Source: kubernetes cmd/kubeadm/app/util/output and cmd/token.go, whose columns drift where a cell is short;
apimachinery pkg/util/duration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from nodeattest_cli.output import format_table, to_json, to_yaml
from nodeattest_cli.token.model import TokenView
from nodeattest_discovery.secret import secret_name
from nodeattest_parsing.times import format_rfc3339

__all__ = ["FORMATS", "format_tokens", "short_duration"]

FORMATS: Final = ("text", "json", "yaml", "json-list", "name")
"""The first is the default."""
_INDENT: Final = 4
"""Spaces, as kubeadm's."""
_HEADINGS: Final = ("TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS")
_WIDTHS: Final = (23, 9, 20, 22, 56, 0)
"""The least, which are kubeadm's own, so that most lines are the same; 56 is the description that it gives."""
_NONE: Final = "<none>"
_DAY_HOURS, _YEAR_HOURS = 24, 24 * 365
_ALMOST_NOW: Final = -1
"""Seconds in the past that still count as now: clocks differ."""


def format_tokens(tokens: Sequence[TokenView], output: str, now: datetime) -> str:
    """Write tokens in one of ``FORMATS``."""
    writers: dict[str, Callable[[], str]] = {
        "json": lambda: "".join(f"{to_json(token.to_json(), indent=_INDENT)}\n" for token in tokens),
        "json-list": lambda: f"{_list(tokens)}\n",
        "yaml": lambda: "---\n".join(to_yaml(token.to_json()) for token in tokens),
        "name": lambda: "".join(f"secret/{secret_name(token.token.id)}\n" for token in tokens),
        "text": lambda: _table(tokens, now),
    }
    return writers[output]()


def short_duration(seconds: float) -> str:
    """Write a time to live in its largest unit: ``59m``, ``23h``, ``3d``; ``<invalid>`` for what is past."""
    whole = int(seconds)
    if whole < _ALMOST_NOW:
        return "<invalid>"
    for size, unit, below in ((1, "s", 60), (60, "m", 60), (3600, "h", _DAY_HOURS)):
        if whole < size * below:
            return f"{max(whole, 0) // size}{unit}"
    hours = whole // 3600
    return f"{hours // _DAY_HOURS}d" if hours < _YEAR_HOURS else f"{hours // _YEAR_HOURS}y"


def _list(tokens: Sequence[TokenView]) -> str:
    items = [token.to_json() for token in tokens]
    return to_json({"kind": "List", "apiVersion": "v1", "items": [*items]}, indent=_INDENT)


def _table(tokens: Sequence[TokenView], now: datetime) -> str:
    """Write the table; nothing where there are no tokens."""
    if not tokens:
        return ""
    rows = [_HEADINGS, *(_row(token, now) for token in tokens)]
    return "".join(f"{line}\n" for line in format_table(rows, widths=_WIDTHS))


def _row(token: TokenView, now: datetime) -> tuple[str, ...]:
    ttl, expires = "<forever>", "<never>"
    if token.expires is not None:
        ttl, expires = short_duration((token.expires - now).total_seconds()), format_rfc3339(token.expires)
    cells = (token.token.reveal(), ttl, expires, ",".join(token.usages), token.description, ",".join(token.groups))
    return tuple(cell or _NONE for cell in cells)
