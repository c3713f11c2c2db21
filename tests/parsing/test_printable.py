"""parsing/printable: foreign text is one printable line, of a bounded length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeattest_parsing.values import one_line, visible, visible_lines


@given(st.text())
def test_whatever_is_shown_is_printable_and_printable_text_stays_as_it_is(text: str) -> None:
    assert visible(text).isprintable()
    assert text.isprintable() == (visible(text) == text)


def test_line_ends_escape_sequences_and_marks_of_direction_are_escaped() -> None:
    assert visible("a\nb\x1b[2J\u202ec\ud800") == r"a\nb\x1b[2J\u202ec\ud800"


@given(st.text(), st.integers(1, 40))
def test_one_line_is_printable_and_no_longer_than_its_limit(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert line.isprintable()
    assert len(line) == min(len(text), limit)
    assert line.endswith("…") or len(text) <= limit


def test_one_line_has_blanks_where_text_is_not_printable() -> None:
    assert one_line("Denied\r\nby\x07you", 100) == "Denied  by you"


@given(st.lists(st.text()))
def test_each_of_several_is_one_line(lines: list[str]) -> None:
    written = visible_lines(*lines)
    assert written.count("\n") == len(lines)
    assert all(line.isprintable() for line in written.split("\n"))
