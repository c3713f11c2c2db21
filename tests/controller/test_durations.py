"""Durations: Go's spelling, or seconds, or an error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_controller.durations import format_duration, parse_duration


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
    ],
)
def test_go_durations_and_bare_seconds_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " 1h", "1h ", "-1h", "+1h", "1d", "h", "1h30", "1e3s", "٣h", "1" * 65, "nan", "inf", "1H"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="336h"):
        parse_duration(text)


@given(st.text(max_size=80))
def test_any_text_gives_seconds_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_duration(text) >= 0


@given(st.integers(min_value=0, max_value=10**13))
def test_what_is_written_reads_back_to_the_millisecond(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000
