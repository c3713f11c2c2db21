"""Durations as Kubernetes writes them: Go's ``336h``, ``1h30m``, ``500ms``, or plain seconds.

Promises: what comes out is finite and never negative, and ``parse_duration(format_duration(x)) == x`` for whole
milliseconds. Leaves ranges to whoever knows what the duration is for. Source: Go's ``time.ParseDuration`` and
``time.Duration.String``; a bare number is seconds, because every operator tries that first.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

__all__ = ["format_duration", "parse_duration"]

_UNITS: Final = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
"""Seconds in each of Go's units; Go knows no day."""
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|µs|ms|s|m|h)", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)
_MAX_LENGTH: Final = 64
"""Characters; the longest that Go itself prints has 25."""


def parse_duration(text: str) -> float:
    """Return the seconds of a duration; raises ``ValueError`` naming what was expected."""
    if len(text) <= _MAX_LENGTH:
        if _NUMBER.fullmatch(text):
            return float(text)
        parts = [(match[1], match[2]) for match in _PART.finditer(text)]
        if parts and "".join(number + unit for number, unit in parts) == text:
            return float(sum((Decimal(number) * _UNITS[unit] for number, unit in parts), Decimal(0)))
    raise ValueError('a duration such as "336h", "1h30m" or "500ms", or a number of seconds')


def format_duration(seconds: float) -> str:
    """Write seconds in Go's units, to the millisecond."""
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, milliseconds = divmod(milliseconds, 1000)
    amounts = ((hours, "h"), (minutes, "m"), (whole, "s"), (milliseconds, "ms"))
    return "".join(f"{amount}{unit}" for amount, unit in amounts if amount) or "0s"
