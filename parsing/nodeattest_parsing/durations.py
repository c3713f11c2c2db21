"""Durations as Go's ``time`` package reads and writes them, in nanoseconds; seconds in the same spelling, too.

Promises: exactly the texts that ``time.ParseDuration`` takes give its number of nanoseconds, everything else is a
``ParseError``; ``format_duration`` writes what ``Duration.String`` does. ``parse_seconds`` takes a number of seconds
besides, and no negative duration; ``parse_seconds(format_seconds(x)) == x`` for whole milliseconds.
``parse_whole_seconds`` takes less: whole hours, minutes and seconds, in this order.
Leaves ranges to the caller.
Source: go/src/time/format.go (ParseDuration) and time.go (String).
"""

from __future__ import annotations

import re
from typing import Final

from nodeattest_parsing.errors import ParseError

__all__ = ["SECOND", "format_duration", "format_seconds", "parse_duration", "parse_seconds", "parse_whole_seconds"]

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
_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)
_WHOLE: Final = re.compile(r"([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?")
"""As in the pattern of manifests/crd/nodeattestationpolicies.yaml, so that both accept the same texts."""
_MAX: Final = 1 << 63
"""Go's Duration is an int64."""
_MAX_LENGTH: Final = 128
"""Characters; Go has no limit."""
_MAX_SECONDS: Final = _MAX // SECOND
_EXPECTED: Final = "a duration such as 1h30m"
_EXPECTED_WHOLE: Final = "a duration in whole hours, minutes and seconds, such as 336h or 1h30m"
_EXPECTED_SECONDS: Final = 'a duration such as "336h", "1h30m" or "500ms", or a number of seconds'


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a duration such as ``1h30m``; raises ``ParseError``."""
    if len(text) > _MAX_LENGTH:
        raise ParseError(_EXPECTED, f"more than {_MAX_LENGTH} characters")
    negative, rest = text.startswith("-"), text[1:] if text[:1] in {"-", "+"} else text
    if rest == "0":
        return 0
    if not rest:
        raise ParseError(_EXPECTED, "no digits")
    total = position = 0
    while position < len(rest):
        found = _PART.match(rest, position)
        if found is None or found.end() == position:
            raise ParseError(_EXPECTED, "no duration")
        total += _amount(found[1], found[2] or "", found[3])
        position = found.end()
    if total > (_MAX if negative else _MAX - 1):
        raise ParseError(_EXPECTED, "more than 292 years")
    return -total if negative else total


def format_duration(nanoseconds: int) -> str:
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


def parse_seconds(text: str) -> float:
    """Return the seconds of a duration, or of a number of seconds; neither may have a sign. Raises ``ParseError``."""
    if _NUMBER.fullmatch(text):
        if float(text) > _MAX_SECONDS:
            raise ParseError(_EXPECTED_SECONDS, "more than 292 years")
        return float(text)
    if text[:1] in {"-", "+"}:
        raise ParseError(_EXPECTED_SECONDS, "a sign")
    try:
        nanoseconds = parse_duration(text)
    except ParseError as error:
        raise ParseError(_EXPECTED_SECONDS, error.got) from None
    return nanoseconds / SECOND


def parse_whole_seconds(text: str) -> int:
    """Return the seconds of a duration of whole hours, minutes and seconds; raises ``ParseError``."""
    if not text or not _WHOLE.fullmatch(text):
        raise ParseError(_EXPECTED_WHOLE, "another spelling")
    return parse_duration(text) // SECOND


def format_seconds(seconds: float) -> str:
    """Write seconds in Go's units, to the millisecond, without units of which there are none: ``336h``, ``1m500ms``."""
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, milliseconds = divmod(milliseconds, 1000)
    amounts = ((hours, "h"), (minutes, "m"), (whole, "s"), (milliseconds, "ms"))
    return "".join(f"{amount}{unit}" for amount, unit in amounts if amount) or "0s"


def _amount(whole: str, fraction: str, unit: str) -> int:
    if not whole and not fraction:
        raise ParseError(_EXPECTED, "a unit without a number")
    if not unit:
        raise ParseError(_EXPECTED, "a number without its unit")
    if unit not in _UNITS:
        raise ParseError(_EXPECTED, "a unit that Go does not know; it knows h, m, s, ms, us and ns")
    size = _UNITS[unit]
    amount = int(whole or "0") * size
    if fraction:
        kept, scale = _fraction(fraction)
        amount += int(kept * (size / scale))
    if amount > _MAX:
        raise ParseError(_EXPECTED, "more than 292 years")
    return amount


def _fraction(digits: str) -> tuple[int, float]:
    """Take as many digits as an int64 holds, as Go does."""
    kept, scale = 0, 1.0
    for digit in digits:
        following = kept * 10 + int(digit)
        if following >= _MAX:
            break
        kept, scale = following, scale * 10
    return kept, scale


def _decimal(amount: int, size: int) -> str:
    """Write ``amount / size`` without zeros at its end."""
    whole, rest = divmod(amount, size)
    digits = f"{rest:0{len(str(size)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else str(whole)
