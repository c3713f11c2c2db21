"""Durations as Go's ``time`` package reads and writes them, to the nanosecond: what ``--ttl`` takes.

Promises: exactly the texts that ``time.ParseDuration`` takes give its number of nanoseconds, everything else is
``ValueError``; ``render`` writes what ``Duration.String`` does, ``short`` what kubectl and kubeadm show in a column.
Source: go/src/time/format.go (ParseDuration) and time.go (String); apimachinery pkg/util/duration.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["SECOND", "parse", "render", "short"]

SECOND: Final = 1_000_000_000
"""Nanoseconds."""
_MINUTE: Final = 60 * SECOND
_HOUR: Final = 60 * _MINUTE
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND,
    "m": _MINUTE,
    "h": _HOUR,
}
_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)", re.ASCII)
_MOST: Final = 1 << 63
"""Go's Duration is an int64."""
_LONGEST: Final = 128
"""Characters; Go has no limit."""
_DAY_HOURS, _YEAR_HOURS = 24, 24 * 365
_ALMOST_NOW: Final = -1
"""Seconds in the past that still count as now: clocks differ."""


def parse(text: str) -> int:
    """Return the nanoseconds of a duration such as ``1h30m``; raises ``ValueError`` that says what is wrong with it."""
    if len(text) > _LONGEST:
        raise ValueError(f"more than {_LONGEST} characters")
    negative, rest = text.startswith("-"), text[1:] if text[:1] in {"-", "+"} else text
    if rest == "0":
        return 0
    if not rest:
        raise ValueError("no digits")
    total = position = 0
    while position < len(rest):
        found = _PART.match(rest, position)
        if found is None or found.end() == position:
            raise ValueError("no duration")
        total += _amount(found[1], found[2] or "", found[3])
        position = found.end()
    if total > (_MOST if negative else _MOST - 1):
        raise ValueError("more than 292 years")
    return -total if negative else total


def render(nanoseconds: int) -> str:
    """Write a duration as Go does: ``24h0m0s``, ``1.5s``, ``300ms``."""
    sign, amount = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if amount == 0:
        return "0s"
    if amount < SECOND:
        unit, size = next((unit, size) for unit, size in (("ms", 10**6), ("µs", 10**3), ("ns", 1)) if amount >= size)
        return f"{sign}{_decimal(amount, size)}{unit}"
    minutes, rest = divmod(amount, _MINUTE)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest, SECOND)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else sign + seconds


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


def _amount(whole: str, fraction: str, unit: str) -> int:
    if not whole and not fraction:
        raise ValueError("a unit without a number")
    if not unit:
        raise ValueError("a number without its unit")
    if unit not in _UNITS:
        raise ValueError(f"the unit {ascii(unit)[1:-1]}")
    size = _UNITS[unit]
    amount = int(whole or "0") * size
    if fraction:
        kept, scale = _fraction(fraction)
        amount += int(kept * (size / scale))
    if amount > _MOST:
        raise ValueError("more than 292 years")
    return amount


def _fraction(digits: str) -> tuple[int, float]:
    """Take as many digits as an int64 holds, as Go does."""
    kept, scale = 0, 1.0
    for digit in digits:
        following = kept * 10 + int(digit)
        if following >= _MOST:
            break
        kept, scale = following, scale * 10
    return kept, scale


def _decimal(amount: int, size: int) -> str:
    """Write ``amount / size`` without zeros at its end."""
    whole, rest = divmod(amount, size)
    digits = f"{rest:0{len(str(size)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else str(whole)
