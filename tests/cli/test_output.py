"""What ``-o`` prints: YAML that every reader takes for the same, tables in columns."""

from __future__ import annotations

import json
from typing import cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_cli.errors import ExitCode
from nodeattest_cli.main import main
from nodeattest_cli.output import format_table, to_json, to_yaml


@pytest.mark.parametrize(
    "text",
    [
        "1e5",
        "123456.0123456789e12345",
        "0x10",
        "y",
        "null",
        "true",
        "2026-01-01T00:00:00Z",
        "",
        "~",
        "1_000",
        "- a",
        "a: b",
    ],
)
def test_what_another_reader_takes_for_no_text_is_quoted(text: str) -> None:
    written = to_yaml({"a": text})
    assert written.startswith(('a: "', "a: '"))
    assert yaml.safe_load(written) == {"a": text}


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=40), max_size=4))
def test_yaml_reads_back_as_it_was(value: dict[str, str]) -> None:
    readable = cast("dict[str, str]", json.loads(json.dumps(value)))
    assert yaml.safe_load(to_yaml({**readable})) == readable


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
