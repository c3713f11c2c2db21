"""YAML of strangers: what is accepted is what PyYAML reads; the rest is refused without a word of it, and in time."""

from __future__ import annotations

import json
from typing import cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_parsing.strict_yaml import Scalars, parse_objects
from nodeattest_parsing.strict_yaml import parse_object as parse_any
from nodeattest_parsing.values import IntegerJsonObject, IntegerJsonValue, JsonObject, JsonValue, ParseError

AMBIGUOUS = (
    "yes", "No", "on", "OFF", "y", "N", "1:30", "190:20:30", "1:30.5", "11:22:33:44:55:06", "0o17", "017", "0x1F",
    "0b1", "1_000", "+12", "1e3", "1.5e3", ".5", "1.", "09", ".inf", "-.INF", ".nan", "9223372036854775808", "-0x1",
)  # fmt: skip
"""Scalars without quotes that some reader of YAML takes for a number or a boolean, and another for text or another."""


def parse_object(text: str) -> IntegerJsonObject:
    return parse_any(text, scalars=Scalars.TEXT, max_depth=16, max_values=4096)


def parse_kubernetes(text: str) -> JsonObject:
    return parse_any(text, scalars=Scalars.KUBERNETES, max_depth=64, max_values=4096)


REFUSED = {
    "nothing": "",
    "a list": "- a",
    "null": "null",
    "two documents": "a: b\n---\nc: d\n",
    "a repeated key": "a: b\na: b\n",
    "a repeated key in brackets": "{a: b, a: c}",
    "a repeated key by escape": '{a: b, "\\x61": c}',
    "an anchor": "a: &x b\n",
    "an anchor of all": "&x {a: b}\n",
    "an alias": "a: &x b\nc: *x\n",
    "an alias of nothing": "a: *x\n",
    "an alias in itself": "a: &x [*x]\n",
    "a merge": "<<: {a: b}\n",
    "a tag": "a: !!str b\n",
    "a tag of Python's": "a: !!python/object/apply:os.system [true]\n",
    "a tag by a handle": "%TAG !x! tag:yaml.org,2002:\n---\na: !x!str b\n",
    "a key that is null": "~: b\n",
    "a key that is a number": "7: b\n",
    "a key that is a mapping": "{{a: b}: c}",
    "a number": "a: 7\n",
    "a date": "a: 2026-01-01\n",
    "an equals sign": "a: =\n",
    "a set": "? a\n? b\n--- x",
    "NUL": "a: b\0\n",
    "half a character": "a: \ud800\n",
    "both halves by escape": 'a: "\\ud83d\\ude00"\n',
    "a character just beyond the last": 'a: "\\U00110000"\n',
    "a version of many digits": f"%YAML {'1' * 5000}.1\n---\na: b\n",
    "an open quote": "a: 'b\n",
    "a tab for indentation": "a:\n\tb: c\n",
    "brackets of seventeen levels": "a: " + "[" * 17 + "]" * 17,
    "lines of eighteen levels": "".join(" " * level + "a:\n" for level in range(18)),
    "more values than a kubeconfig has": "a: [" + "b," * 4096 + "]",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_anything_else_is_refused_without_a_word_of_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"\A[A-Za-z0-9 ,]+\Z") as raised:
        parse_object(text)
    assert type(raised.value) is ParseError


def test_a_secret_in_bad_yaml_does_not_reach_the_message() -> None:
    with pytest.raises(ValueError, match=r"no YAML at line [0-9]") as raised:
        parse_object("a: b\ntoken: 'abcdef.0123456789abcdef\n  x: \"\n")
    assert "abcdef" not in repr(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: b", {"a": "b"}),
        ("\ufeffa: b", {"a": "b"}),
        ("---\na: b\n...\n", {"a": "b"}),
        ("a: b\r\nc: d\r\n", {"a": "b", "c": "d"}),
        ("a: |\n  b\n  c\n", {"a": "b\nc\n"}),
        ("? a\n: b\n", {"a": "b"}),
        ("a:\nb: ~\nc: null\n", {"a": None, "b": None, "c": None}),
        ("a: true\nb: FALSE\nc: 'y'\nd: 'true'\n", {"a": True, "b": False, "c": "y", "d": "true"}),
        ('{"a": [true, false, null, "x"], "b": {}}', {"a": [True, False, None, "x"], "b": {}}),
        ('a: "7"\nb: "\\u00e9\\t"\n', {"a": "7", "b": "é\t"}),
        ("a: " + "[" * 16 + "]" * 16, {"a": json.loads("[" * 16 + "]" * 16)}),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, str) else "",
)
def test_what_a_kubeconfig_may_hold_is_read(text: str, expected: JsonObject) -> None:
    assert parse_object(text) == expected == yaml.safe_load(text)


plain = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF))
"""JSON escapes characters of other planes in two halves, which YAML does not join."""
keys = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF), max_size=99)
"""A key ends within 1024 characters (YAML 1.1 §9.2.2), escapes included."""
values = st.recursive(
    st.none() | st.booleans() | plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, values, max_size=3))
def test_what_json_writes_is_read_as_it_was(document: JsonObject) -> None:
    assert parse_object(json.dumps(document)) == document


@given(
    st.lists(
        st.sampled_from([*"ab:,-?{}[]&*!|>'\"%@#\n ~=<7.", "true", "a: b", "- ", "\n  ", "---", "...", "\ufeff", "\\"])
        | st.text()
    )
)
def test_what_is_accepted_is_what_pyyaml_reads(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        read = parse_object(text)
    except ValueError:
        return
    assert read == yaml.safe_load(text)
    assert list(read) == list(cast("dict[str, IntegerJsonValue]", yaml.safe_load(text)))


@pytest.mark.parametrize("text", AMBIGUOUS)
@pytest.mark.parametrize("scalars", [Scalars.TEXT, Scalars.INTEGERS, Scalars.KUBERNETES])
def test_what_readers_take_for_different_values_needs_quotes(text: str, scalars: Scalars) -> None:
    for document in (f"a: {text}\n", f"[{text}]", f"{text}: a\n"):
        with pytest.raises(ParseError):
            parse_any(document, scalars=scalars, max_depth=16, max_values=99)
    assert parse_object(f"a: '{text}'\n") == {"a": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-7", -7),
        ("9223372036854775807", 2**63 - 1),
        ("0.5", 0.5),
        ("-1.25", -1.25),
        ("1.0e+3", 1000.0),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("100Mi", "100Mi"),
        ("000bb6b80123456789abcdef", "000bb6b80123456789abcdef"),  # a TPM's name, as kubectl prints it
        ("1.2.3", "1.2.3"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("~", None),
        ("True", True),
    ],
)
def test_a_kubernetes_object_holds_numbers_and_times_are_text(text: str, value: JsonValue) -> None:
    assert parse_kubernetes(f"a: {text}\n") == {"a": value}


def test_documents_are_read_one_after_the_other_and_empty_ones_left_out() -> None:
    def read(text: str) -> list[IntegerJsonObject]:
        return parse_objects(text, scalars=Scalars.INTEGERS, max_depth=16, max_values=99, max_documents=3)

    assert read("a: 1\n---\n---\nb: c\n") == [{"a": 1}, {"b": "c"}]
    assert read("") == []
    for bad in ("a: b\n---\n- c\n", "--- {}\n" * 4):
        with pytest.raises(ParseError):
            read(bad)


@pytest.mark.parametrize("data", [b"\xff\xfea\x00", b"a: \xff", b"\xed\xa0\x80"])
def test_bytes_are_utf_8(data: bytes) -> None:
    with pytest.raises(ParseError, match="UTF-8"):
        parse_any(data, scalars=Scalars.TEXT, max_depth=16, max_values=99)
