"""Durations as Go reads and writes them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_parsing.times import SECOND, format_seconds, parse_duration, parse_seconds, parse_whole_seconds
from nodeattest_parsing.values import ParseError

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
MOST = (1 << 63) - 1

# go/src/time/time_test.go, parseDurationTests and parseDurationErrorTests
GOOD = [
    ("0", 0),
    ("5s", 5 * SECOND),
    ("30s", 30 * SECOND),
    ("1478s", 1478 * SECOND),
    ("-5s", -5 * SECOND),
    ("+5s", 5 * SECOND),
    ("-0", 0),
    ("+0", 0),
    ("5.0s", 5 * SECOND),
    ("5.6s", 5_600_000_000),
    ("5.s", 5 * SECOND),
    (".5s", SECOND // 2),
    ("1.004s", 1_004_000_000),
    ("100.00100s", 100_001_000_000),
    ("10ns", 10),
    ("11us", 11_000),
    ("12µs", 12_000),
    ("12μs", 12_000),
    ("13ms", 13_000_000),
    ("300ms", 300_000_000),
    ("3h30m", 3 * HOUR + 30 * MINUTE),
    ("24h0m0s", 24 * HOUR),
    ("10.5s4m", 4 * MINUTE + 10_500_000_000),
    ("-2m3.4s", -(2 * MINUTE + 3_400_000_000)),
    ("1h2m3s4ms5us6ns", HOUR + 2 * MINUTE + 3 * SECOND + 4_005_006),
    ("39h9m14.425s", 39 * HOUR + 9 * MINUTE + 14_425_000_000),
    ("52763797000ns", 52_763_797_000),
    ("9007199254740993ns", (1 << 53) + 1),
    ("9223372036854775807ns", MOST),
    ("-9223372036854775808ns", -(1 << 63)),
    ("9223372036s854ms775us807ns", MOST),
    ("0.100000000000000000000h", 6 * MINUTE),
    ("0.830103483285477580700h", 49 * MINUTE + 48_372_539_827),
]
BAD = [
    "", "3", "5", "-", "s", ".", "-.", ".s", "+.s", "1d", "x", "1h ", " 1h", "1 h", "1H", "--1h", "1h-1m", "+-1h",
    "1,5h", "3000000h", "9223372036854775808ns", "9223372036854775.808us", "9223372036854ms775us808ns",
    "-9223372036854775809ns", "\u0661s", "1s\n", "1" * 200 + "s",
]  # fmt: skip


@pytest.mark.parametrize(("text", "nanoseconds"), GOOD)
def test_what_go_takes_is_the_same_number(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize("text", BAD)
def test_what_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_duration(text)


@given(st.text(alphabet="0123456789.+-hmsunµ ", max_size=20))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        found = parse_duration(text)
    except ValueError:
        return
    assert -(1 << 63) <= found <= MOST


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("336h", 1_209_600.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        ("15", 15.0),
        ("0", 0.0),
        ("2µs", 2e-6),
        ("1.004s", 1.004),
    ],
)
def test_go_durations_and_bare_seconds_are_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1h",
        "1h ",
        "-1h",
        "+1h",
        "1d",
        "h",
        "1h30",
        "1e3s",
        "٣h",
        "1" * 65,
        "1" * 12,
        "nan",
        "inf",
        "1H",
        "1_0",
        ".",
        "3000000h",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="336h"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["1" * 12, "1_0", ".", "3000000h", "9223372037"])
def test_what_go_has_no_duration_for_is_no_number_of_seconds(text: str) -> None:
    with pytest.raises(ParseError, match="336h"):
        parse_seconds(text)


@given(st.text(max_size=80))
def test_any_text_gives_seconds_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_seconds(text) >= 0


@given(st.integers(min_value=0, max_value=9 * 10**12))
def test_what_is_written_reads_back_to_the_millisecond(milliseconds: int) -> None:
    assert parse_seconds(format_seconds(milliseconds / 1000)) == milliseconds / 1000


def test_whole_seconds_have_no_fractions_and_one_order() -> None:
    assert [parse_whole_seconds(text) for text in ("336h", "1h30m", "2m1s")] == [1_209_600, 5400, 121]
    for text in ("", "1.5h", "30m1h", "-1h", "15", "1ms"):
        with pytest.raises(ParseError):
            parse_whole_seconds(text)
