"""Times as Go's ``time.Parse(time.RFC3339, …)`` reads them and as Kubernetes writes them.

Promises: exactly the texts that Go takes give a time: that decides whether a bootstrap token has expired. Go takes a
fraction after a dot or a comma, an hour of one digit, and offsets up to ±24:60; it refuses lower-case letters, a space
for the T, a missing zone, leap seconds and 24:00:00. Python's ``datetime.fromisoformat`` differs in nearly all of
these.
Source: go/src/time/format.go (parse) and format_rfc3339.go; k8s.io/cluster-bootstrap token/util/helpers.go;
k8s.io/apimachinery pkg/apis/meta/v1/time.go (MarshalJSON).
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from nodeattest_parsing.errors import ParseError

__all__ = ["format_rfc3339", "parse_rfc3339", "try_parse_rfc3339"]

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
        # Go's year 0 is none of Python's; a leap year, too.
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
    """Parse a time, in UTC; None where Go would refuse it."""
    try:
        return parse_rfc3339(text)
    except ParseError:
        return None


def format_rfc3339(value: datetime) -> str:
    """Write a time as Kubernetes does: UTC, whole seconds, ``Z``."""
    return value.astimezone(UTC).replace(tzinfo=None, microsecond=0).isoformat() + "Z"
