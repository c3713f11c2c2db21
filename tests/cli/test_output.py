"""What ``-o`` prints: JSON and tables in columns."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_cli.errors import ExitCode
from nodeattest_cli.main import main
from nodeattest_cli.output import format_table, to_json


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=40) | st.integers(), max_size=4), st.none() | st.just(2))
def test_json_is_printable_and_reads_back_as_it_was(value: dict[str, str | int], indent: int | None) -> None:
    written = to_json({**value}, indent=indent)
    assert all(one.isprintable() for one in written.replace("\n", ""))
    assert json.loads(written) == value


@given(st.lists(st.lists(st.text(max_size=8), min_size=2, max_size=2), min_size=1, max_size=4))
def test_a_table_has_one_line_a_row_and_nothing_that_a_terminal_obeys(rows: list[list[str]]) -> None:
    lines = format_table(rows)
    assert len(lines) == len(rows)
    assert all(line.isprintable() for line in lines)


def test_an_error_line_holds_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines", "list", "--kubeconfig", "/none/\x1b]0;forged\x07\u202e"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "\\x1b]0;forged" in said
    assert said.removesuffix("\n").isprintable()
