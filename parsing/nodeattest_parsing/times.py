"""Durations as Go's ``time.ParseDuration`` reads them, but for signs, and times as its ``time.Parse(time.RFC3339, …)``.

Exactly the texts that Go takes give a time: that decides whether a bootstrap token has expired. Python's
``datetime.fromisoformat`` differs in fractions, hours of one digit, offsets, lower case, and 24:00:00.
Source: go/src/time/format.go, format_rfc3339.go, time.go; k8s.io/cluster-bootstrap token/util/helpers.go.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from nodeattest_parsing.values import ParseError

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
_PART: Final = re.compile(r"([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(ns|us|µs|μs|ms|s|m|h)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})++")
_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)
_WHOLE: Final = re.compile(r"([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?")
"""As in the pattern of manifests/crd/nodeattestationpolicies.yaml, so that both accept the same texts."""
_MAX: Final = 1 << 63
"""Go's Duration is an int64."""
_MAX_LENGTH: Final = 128
"""Characters; Go has no limit."""
_MAX_SECONDS: Final = _MAX // SECOND
_EXPECTED_DURATION: Final = "a duration such as 1h30m"
_EXPECTED_WHOLE: Final = "a duration in whole hours, minutes and seconds, such as 336h or 1h30m"
_EXPECTED_SECONDS: Final = 'a duration such as "336h", "1h30m" or "500ms", or a number of seconds'


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a duration such as ``1h30m``, which has no sign; raises ``ParseError``."""
    if len(text) > _MAX_LENGTH or not (text == "0" or _DURATION.fullmatch(text)):
        raise ParseError(_EXPECTED_DURATION, f"other text of {len(text)} characters")
    total = sum(int(Decimal(amount) * _UNITS[unit]) for amount, unit in _PART.findall(text))
    if total >= _MAX:
        raise ParseError(_EXPECTED_DURATION, "more than 292 years")
    return total


def parse_seconds(text: str) -> float:
    """Return the seconds of a duration, or of a number of seconds; raises ``ParseError``."""
    if _NUMBER.fullmatch(text):
        if float(text) > _MAX_SECONDS:
            raise ParseError(_EXPECTED_SECONDS, "more than 292 years")
        return float(text)
    try:
        nanoseconds = parse_duration(text)
    except ParseError as error:
        raise ParseError(_EXPECTED_SECONDS, error.got) from None
    return nanoseconds / SECOND


def parse_whole_seconds(text: str) -> int:
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


_PATTERN: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_USUAL: Final = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\dZ", re.ASCII)
"""As Kubernetes writes times; in this form Go and ``datetime.fromisoformat`` agree, but for the year 0. Newer Pythons
take 24:00:00, which Go does not."""
_MAX_OFFSET_HOURS: Final = 24
_MAX_OFFSET_MINUTES: Final = 60
"""Go checks each part of an offset for itself (format.go, stdISO8601ColonTZ)."""
_EXPECTED: Final = "a time such as 2026-01-01T00:00:00Z"


def parse_rfc3339(text: str) -> datetime:
    """Parse a time, in UTC; raises ``ParseError`` where Go would refuse it.

    What lies beyond Python's years 1 to 9999 counts as the nearest of these.
    """
    if _USUAL.fullmatch(text):
        with suppress(ValueError):
            return datetime.fromisoformat(text)
    found = _PATTERN.fullmatch(text)  # linear in the text, which may be as long as a Secret: Go sets no limit either
    if found is None:
        raise ParseError(_EXPECTED, f"other text of {len(text)} characters")
    year, month, day, hour, minute, second = (int(found[group]) for group in range(1, 7))
    offset_hours, offset_minutes = int(found[9] or 0), int(found[10] or 0)
    if offset_hours > _MAX_OFFSET_HOURS or offset_minutes > _MAX_OFFSET_MINUTES:
        raise ParseError(_EXPECTED, "an offset of more than a day")
    try:
        # Python has no year 0: check the date in year 4, which is a leap year as well.
        local = datetime(year or 4, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise ParseError(_EXPECTED, "a time that no calendar has") from None
    if year == 0:
        return datetime.min.replace(tzinfo=UTC)
    offset = timedelta(hours=offset_hours, minutes=offset_minutes)
    fraction = timedelta(microseconds=int((found[7] or "")[:6].ljust(6, "0")))
    try:
        return local + fraction + (offset if found[8] == "-" else -offset)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if found[8] == "-" else datetime.min.replace(tzinfo=UTC)


def try_parse_rfc3339(text: str) -> datetime | None:
    try:
        return parse_rfc3339(text)
    except ParseError:
        return None
