"""Expirations: the times that Go's ``time.Parse(time.RFC3339, …)`` reads, and no others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_parsing.times import format_rfc3339, parse_rfc3339, try_parse_rfc3339
from nodeattest_parsing.values import ParseError

JANUARY = datetime(2030, 1, 1, tzinfo=UTC)
LAST, FIRST = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)

# The first 22 were run against Kubernetes 1.36, the others read in go/src/time/format.go; test_discovery_oracles.py
# asks the control plane at hand about both.
TABLE: dict[str, datetime | None] = {
    "2030-01-01T00:00:00Z": JANUARY,
    "2030-01-01 00:00:00Z": None,
    "2030-01-01T00:00:00": None,
    "2030-01-01T00:00:00.5Z": JANUARY + timedelta(seconds=0.5),
    "2030-01-01T00:00:00,5Z": JANUARY + timedelta(seconds=0.5),
    "2030-01-01T0:00:00Z": JANUARY,
    "2030-01-01T00:00:00+02:00": JANUARY - timedelta(hours=2),
    "2030-01-01T00:00:00+0200": None,
    "2030-01-01t00:00:00z": None,
    "never": None,
    " 2030-01-01T00:00:00Z": None,
    "2030-01-01T00:00:00Z\n": None,
    "2030-02-30T00:00:00Z": None,
    "2030-01-01T24:00:00Z": None,
    "2029-12-31T23:59:60Z": None,
    "2030-01-01": None,
    "1893456000": None,
    "2030-01-01T00:00Z": None,
    "99999-01-01T00:00:00Z": None,
    "0000-01-01T00:00:00Z": FIRST,
    "2030-01-01T00:00:00-24:00": JANUARY + timedelta(hours=24),
    "2030-01-01T00:00:00+99:99": None,
    "": None,
    "Z": None,
    "2030-01-01T00:00:00Z ": None,
    "2030-01-01T00:00:00ZZ": None,
    "2030-01-01T00:00:00+00:00Z": None,
    "2030-01-01T00:00:00-24:60": JANUARY + timedelta(hours=25),
    "2030-01-01T00:00:00+24:60": JANUARY - timedelta(hours=25),
    "2030-01-01T00:00:00+25:00": None,
    "2030-01-01T00:00:00+00:61": None,
    "2030-01-01T00:00:00\u221202:00": None,
    "2030-01-01T00:00:00.Z": None,
    "2030-01-01T00:00:00.+02:00": None,
    "2030-01-01T00:00:00.123456789123Z": JANUARY + timedelta(microseconds=123456),
    f"2030-01-01T00:00:00.{'9' * 5000}Z": JANUARY + timedelta(microseconds=999999),
    "2030-01-01T00:00:00;5Z": None,
    "2030-01-01T7:00:00Z": JANUARY + timedelta(hours=7),
    "2030-01-01T007:00:00Z": None,
    "2030-01-01T00:0:00Z": None,
    "2030-01-01T00:00:0Z": None,
    "2030-1-01T00:00:00Z": None,
    "2030-01-1T00:00:00Z": None,
    "2030-13-01T00:00:00Z": None,
    "2030-00-01T00:00:00Z": None,
    "2030-01-00T00:00:00Z": None,
    "2030-01-32T00:00:00Z": None,
    "2030-01-01T00:60:00Z": None,
    "2029-02-29T00:00:00Z": None,
    "2028-02-29T00:00:00Z": datetime(2028, 2, 29, tzinfo=UTC),
    "2100-02-29T00:00:00Z": None,
    "0000-02-29T00:00:00Z": FIRST,
    "0000-02-30T00:00:00Z": None,
    "9999-12-31T23:59:59-24:00": LAST,
    "0001-01-01T00:00:00+24:00": FIRST,
    "-2030-01-01T00:00:00Z": None,
    "+2030-01-01T00:00:00Z": None,
    "\u0662\u0660\u0663\u0660-01-01T00:00:00Z": None,
    "2030-01-01T00:00:00.\u0665Z": None,
    "20300101T000000Z": None,
    "2030-W01-2T00:00:00Z": None,
    "2030-001T00:00:00Z": None,
    "2030-01-01T00:00:00[UTC]": None,
    "2030-01-01T00:00:00 UTC": None,
    "2030-01-01T12:00:00PM": None,
    "2030-01-01T00:00:00Z\0": None,
    "2030-01-01T00:00:00\udcffZ": None,
}
moments = st.datetimes(timezones=st.just(UTC))
offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@pytest.mark.parametrize(("text", "expected"), TABLE.items(), ids=[ascii(text)[:40] for text in TABLE])
def test_a_text_is_the_time_that_go_reads(text: str, expected: datetime | None) -> None:
    assert try_parse_rfc3339(text) == expected
    if expected is None:
        with pytest.raises(ParseError, match="a time such as"):
            parse_rfc3339(text)


@given(moments)
def test_what_is_written_is_read(moment: datetime) -> None:
    assert parse_rfc3339(moment.isoformat().replace("+00:00", "Z")) == moment
    assert parse_rfc3339(format_rfc3339(moment)) == moment.replace(microsecond=0)


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=offsets))  # noqa: DTZ001 - bounds have no zone
def test_an_offset_moves_the_hands_and_not_the_moment(moment: datetime) -> None:
    read = parse_rfc3339(moment.isoformat())
    assert read == moment
    assert read.utcoffset() == timedelta(0)


@given(moments, st.from_regex(r"[0-9]{1,30}", fullmatch=True))
def test_a_fraction_is_cut_to_microseconds_whatever_its_sign(moment: datetime, digits: str) -> None:
    text = moment.replace(microsecond=0, tzinfo=None).isoformat()
    expected = moment.replace(microsecond=int(digits[:6].ljust(6, "0")))
    assert parse_rfc3339(f"{text}.{digits}Z") == parse_rfc3339(f"{text},{digits}Z") == expected


@given(st.text(st.sampled_from("0123456789-+:.,TZtz \n\u0663"), max_size=40) | st.text())
def test_every_text_has_an_answer_in_utc(text: str) -> None:
    read = try_parse_rfc3339(text)
    assert read is None or read.tzinfo is UTC


@given(moments, st.integers(0, 19), st.characters())
def test_no_single_slip_turns_a_time_into_a_later_one_unseen(moment: datetime, at: int, slip: str) -> None:
    """A slip is refused, or it is a digit for a digit."""
    text = moment.replace(microsecond=0, tzinfo=None).isoformat() + "Z"
    changed = text[:at] + slip + text[at + 1 :]
    if try_parse_rfc3339(changed) is not None and changed != text:
        assert slip in "0123456789"
        assert text[at].isdigit()
