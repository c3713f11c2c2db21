"""Times and durations: those that Go reads, and no others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_parsing.objects import rfc3339
from nodeattest_parsing.times import (
    SECOND,
    format_seconds,
    parse_duration,
    parse_rfc3339,
    parse_seconds,
    parse_whole_seconds,
    try_parse_rfc3339,
)
from nodeattest_parsing.values import ParseError

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
MOST = (1 << 63) - 1

# go/src/time/time_test.go, parseDurationTests and parseDurationErrorTests
DURATIONS = {
    "0": 0,
    "5.s": 5 * SECOND,
    ".5s": SECOND // 2,
    "100.00100s": 100_001_000_000,
    "12µs": 12_000,
    "12μs": 12_000,
    "10.5s4m": 4 * MINUTE + 10_500_000_000,
    "1h2m3s4ms5us6ns": HOUR + 2 * MINUTE + 3 * SECOND + 4_005_006,
    "9007199254740993ns": (1 << 53) + 1,
    "9223372036854775807ns": MOST,
    "9223372036s854ms775us807ns": MOST,
    "0.100000000000000000000h": 6 * MINUTE,
    "0.830103483285477580700h": 49 * MINUTE + 48_372_539_827,
}
NO_DURATIONS = (
    "", "3", "-", "s", ".", "-.", ".s", "+.s", "1d", "1h ", " 1h", "1 h", "1H", "--1h", "1h-1m", "+-1h",
    "1,5h", "3000000h", "-5s", "+5s", "+0",
    "9223372036854775808ns", "9223372036854775.808us", "9223372036854ms775us808ns",
    "-9223372036854775809ns", "\u0661s", "1s\n", "1" * 200 + "s",
)  # fmt: skip
NO_SECONDS = (
    "", " 1h", "1h ", "-1h", "+1h", "1d", "h", "1h30", "1e3s", "٣h", "1" * 65, "1" * 12, "nan", "inf", "1H", "1_0", ".",
    "3000000h", "9223372037",
)  # fmt: skip


@pytest.mark.parametrize(("text", "nanoseconds"), DURATIONS.items())
def test_a_duration_that_go_reads_is_the_same_number(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_duration, text) for text in NO_DURATIONS),
        *((parse_seconds, text) for text in NO_SECONDS),
        *((parse_whole_seconds, text) for text in ("", "1.5h", "30m1h", "-1h", "15", "1ms")),
    ],
)
def test_what_is_no_duration_is_refused(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(ParseError, match="a duration"):
        parse(text)


def test_a_number_of_seconds_is_a_duration_or_a_bare_number() -> None:
    texts = {"336h": 1_209_600.0, "1.5h": 5400.0, "500ms": 0.5, "15": 15.0, "0": 0.0, "2µs": 2e-6, "1.004s": 1.004}
    assert {text: parse_seconds(text) for text in texts} == texts
    assert [parse_whole_seconds(text) for text in ("336h", "1h30m", "2m1s")] == [1_209_600, 5400, 121]


@given(st.integers(min_value=0, max_value=9 * 10**12))
def test_what_is_written_reads_back_to_the_millisecond(milliseconds: int) -> None:
    assert parse_seconds(format_seconds(milliseconds / 1000)) == milliseconds / 1000


JANUARY = datetime(2030, 1, 1, tzinfo=UTC)
LAST, FIRST = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)

# Run against Kubernetes 1.36, or read in go/src/time/format.go; test_discovery_oracles.py asks the control plane at
# hand about them.
TIMES: dict[str, datetime] = {
    "2030-01-01T00:00:00Z": JANUARY,
    "2030-01-01T00:00:00.5Z": JANUARY + timedelta(seconds=0.5),
    "2030-01-01T00:00:00,5Z": JANUARY + timedelta(seconds=0.5),
    "2030-01-01T0:00:00Z": JANUARY,
    "2030-01-01T7:00:00Z": JANUARY + timedelta(hours=7),
    "2030-01-01T00:00:00+02:00": JANUARY - timedelta(hours=2),
    "2030-01-01T00:00:00-24:60": JANUARY + timedelta(hours=25),
    "2030-01-01T00:00:00+24:60": JANUARY - timedelta(hours=25),
    "2030-01-01T00:00:00.123456789123Z": JANUARY + timedelta(microseconds=123456),
    f"2030-01-01T00:00:00.{'9' * 5000}Z": JANUARY + timedelta(microseconds=999999),
    "2028-02-29T00:00:00Z": datetime(2028, 2, 29, tzinfo=UTC),
    "0000-01-01T00:00:00Z": FIRST,
    "0000-02-29T00:00:00Z": FIRST,
    "9999-12-31T23:59:59-24:00": LAST,
    "0001-01-01T00:00:00+24:00": FIRST,
}
DAY = "2030-01-01T"
NO_TIMES: tuple[str, ...] = (
    "", "Z", "never", "1893456000", "2030-01-01", "2030-01-01 00:00:00Z", "2030-01-01t00:00:00z",
    *(DAY + rest for rest in ("00:00:00", "00:00Z", "24:00:00Z", "007:00:00Z", "00:0:00Z", "00:00:0Z", "00:60:00Z")),
    *(f"{DAY}00:00:00{rest}" for rest in ("+0200", "+99:99", "Z ", "Z\n", "ZZ", "Z\0", "+00:00Z", "+25:00", "+00:61")),
    *(f"{DAY}00:00:00{rest}" for rest in ("\u221202:00", ".Z", ".+02:00", ";5Z", ".\u0665Z", "[UTC]", " UTC")),
    *(f"{date}T00:00:00Z" for date in ("2030-02-30", "2030-1-01", "2030-01-1", "2030-13-01", "2030-00-01")),
    *(f"{date}T00:00:00Z" for date in ("2030-01-32", "2029-02-29", "2100-02-29", "0000-02-30", "99999-01-01")),
    *(f"{date}T00:00:00Z" for date in ("-2030-01-01", "+2030-01-01", "\u0662\u0660\u0663\u0660-01-01", "2030-W01-2")),
    " 2030-01-01T00:00:00Z", "2029-12-31T23:59:60Z", "20300101T000000Z", "2030-001T00:00:00Z", f"{DAY}12:00:00PM",
)  # fmt: skip
moments = st.datetimes(timezones=st.just(UTC))
offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@pytest.mark.parametrize(("text", "expected"), TIMES.items(), ids=[ascii(text)[:40] for text in TIMES])
def test_a_text_is_the_time_that_go_reads(text: str, expected: datetime) -> None:
    assert parse_rfc3339(text) == expected


@pytest.mark.parametrize("text", NO_TIMES, ids=ascii)
def test_what_go_reads_as_no_time_is_refused(text: str) -> None:
    assert try_parse_rfc3339(text) is None
    with pytest.raises(ParseError, match="a time such as"):
        parse_rfc3339(text)


@given(moments)
def test_what_is_written_is_read(moment: datetime) -> None:
    assert parse_rfc3339(moment.isoformat().replace("+00:00", "Z")) == moment
    assert parse_rfc3339(rfc3339(moment)) == moment.replace(microsecond=0)


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=offsets))  # noqa: DTZ001 - bounds have no zone
def test_an_offset_moves_the_hands_and_not_the_moment(moment: datetime) -> None:
    read = parse_rfc3339(moment.isoformat())
    assert read == moment
    assert read.utcoffset() == timedelta(0)


@given(moments, st.integers(0, 19), st.characters())
def test_no_single_slip_turns_a_time_into_a_later_one_unseen(moment: datetime, at: int, slip: str) -> None:
    """A slip is refused, or it is a digit for a digit."""
    text = moment.replace(microsecond=0, tzinfo=None).isoformat() + "Z"
    changed = text[:at] + slip + text[at + 1 :]
    if try_parse_rfc3339(changed) is not None and changed != text:
        assert slip in "0123456789"
        assert text[at].isdigit()
