"""JSON: one value or ``ParseError``, without a word of the text."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_parsing import strict_json
from nodeattest_parsing.values import JsonObject, JsonValue, ParseError


def integers(data: bytes | str) -> object:
    return strict_json.parse_object(data, max_size=4096, max_depth=8, max_values=99)


def floats(data: bytes | str) -> JsonObject:
    return strict_json.parse_object(data, max_size=4096, max_depth=8, max_values=99, floats=True)


REFUSED = {
    "nothing": (b"", "not JSON"),
    "an array": (b"[]", "not an object"),
    "text after it": (b"{} x", "not JSON"),
    "a trailing comma": (b'{"a":1,}', "not JSON"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "not JSON"),
    "UTF-16": ("{}".encode("utf-16"), "not UTF-8"),
    "a surrogate in UTF-8": (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
    "a lone surrogate": (rb'{"a":"\ud800"}', "a lone surrogate"),
    "a duplicate key": (b'{"a":1,"a":1}', "a duplicate key"),
    "a duplicate key by escape": (rb'{"a":1,"\u0061":2}', "a duplicate key"),
    "a duplicate key deep inside": (b'{"a":[{"b":1,"b":2}]}', "a duplicate key"),
    "NaN": (b'{"a":NaN}', "does not have"),
    "infinity": (b'{"a":-Infinity}', "does not have"),
    "an integer of 65 bits": (b'{"a":99999999999999999999}', "beyond 64 bits"),
    "an integer of many digits": (b'{"a":' + b"9" * 4000 + b"}", "beyond 64 bits"),
    "nine levels": (b'{"a":' * 9 + b"1" + b"}" * 9, "nesting deeper than 8"),
    "a hundred values": (b'{"a":[' + b",".join([b"1"] * 98) + b"]}", "more than 99 values"),
    "more bytes": (b'{"a":"' + b"b" * 4096 + b'"}', "bytes"),
}


@pytest.mark.parametrize(("data", "got"), REFUSED.values(), ids=REFUSED)
def test_anything_else_is_refused(data: bytes, got: str) -> None:
    for parse in (integers, floats):
        if parse is floats and got == "beyond 64 bits" and len(data) < 99:
            continue  # unsigned integers of 64 bits have as many digits
        with pytest.raises(ParseError, match=got) as raised:
            parse(data)
        assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_no_depth_is_followed_until_the_interpreter_fails() -> None:
    with pytest.raises(ParseError, match="nesting deeper"):
        strict_json.parse(b"[" * 10**6, max_size=None)


def test_fractions_are_finite_short_and_taken_where_they_are_wanted() -> None:
    for number in ("1.0", "1e2", "-0.5", "1E-2", f"0.{'1' * 62}"):
        text = f'{{"a":{number}}}'
        assert floats(text) == {"a": float(number)}
        with pytest.raises(ParseError, match="not an integer"):
            integers(text)
    for number in ("1e999", f"0.{'1' * 63}"):
        with pytest.raises(ParseError, match="beyond a 64-bit float, or too long"):
            floats(f'{{"a":{number}}}')


def test_the_last_duplicate_wins_where_the_caller_allows_them() -> None:
    for most in (None, 9):
        read = strict_json.parse(b'{"a":1,"a":2}', max_size=None, max_values=most, duplicates=True)
        assert read == {"a": 2}


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5, 2**63, -(2**63) - 1])
def test_a_value_of_our_own_is_checked_by_the_same_rules(value: float) -> None:
    with pytest.raises(ParseError):
        strict_json.check({"a": [value]}, max_depth=None, max_values=None)


def test_separators_in_texts_are_no_values() -> None:
    text = json.dumps({"a": ",[{" * 1000, "b": '\\"'})
    assert integers(text) == json.loads(text)
    for many in ([",[{"] * 200, [",[{"] * 10 + [0] * 300):
        with pytest.raises(ParseError, match="more than 99 values"):
            integers(json.dumps({"a": many}))


values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(values, st.booleans())
def test_what_json_writes_is_read_as_it_was(value: JsonValue, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return
    try:
        assert strict_json.parse(encoded, max_size=None) == value
    except ParseError as error:
        assert error.got == "a lone surrogate"  # noqa: PT017 - an answer, too, for keys of this strategy


@given(st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_any_bytes_have_an_answer(data: bytes) -> None:
    try:
        value = strict_json.parse(data, max_size=None, floats=True)
    except ParseError:
        return
    assert value == json.loads(data)


def without_texts(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return [without_texts(each) for each in value.values()]
    return [without_texts(each) for each in value] if isinstance(value, list) else 0


def count(value: JsonValue) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(count, inner))


@given(st.lists(values | st.text('[{,"\\', max_size=9), max_size=6), st.integers(1, 40))
def test_values_are_bounded_by_what_stands_outside_of_texts(document: list[JsonValue], most: int) -> None:
    bound = strict_json.bound_values(json.dumps(document, separators=(",", ":")), most)
    if bound is None:
        assert len(json.dumps(without_texts(document))) > most
    else:
        assert count(document) <= bound <= most
