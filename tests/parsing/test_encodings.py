"""Base64, base64url and JWS have one spelling; foreign text is shown as one printable line of a bounded length."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_parsing.compact_jws import numeric_date, parse_claims, split
from nodeattest_parsing.strict_base64 import decode_base64, decode_base64url, encode_base64, encode_base64url
from nodeattest_parsing.values import ParseError, one_line, visible, visible_lines

HEADER = encode_base64url(b'{"alg":"none"}')


@given(st.binary(max_size=64))
def test_what_is_encoded_is_decoded(data: bytes) -> None:
    assert encode_base64(data) == base64.b64encode(data).decode()
    assert encode_base64url(data) == base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    assert decode_base64(encode_base64(data)) == decode_base64(encode_base64(data).encode()) == data
    assert decode_base64url(encode_base64url(data)) == data


@given(st.text(st.sampled_from("AQZaz09+/-_= \n=é"), max_size=12) | st.text(max_size=12))
def test_every_other_spelling_is_refused(text: str) -> None:
    for decode, encode in ((decode_base64, encode_base64), (decode_base64url, encode_base64url)):
        try:
            data = decode(text)
        except ParseError:
            continue
        assert encode(data) == text


def test_a_jws_is_split_and_nothing_of_its_content_shows() -> None:
    token = f"{HEADER}.{encode_base64url(b'content')}.{encode_base64url(b'signature')}".encode()
    found = split(token, max_size=99)
    assert (found.header, found.payload, found.signature) == ({"alg": "none"}, b"content", b"signature")
    assert found.signed == token.rpartition(b".")[0]
    assert "content" not in repr(found)


@pytest.mark.parametrize(
    "token",
    [
        "..",
        "a.b",
        f"{HEADER}..{'A' * 100}",
        f"{HEADER}=..",
        f"{HEADER}. .",
        f"{HEADER}...",
        f"{encode_base64url(b'[]')}..",
        f"{encode_base64url(b'{}{}')}..",
        encode_base64url(b'{"a":1,"a":2}') + "..",
    ],
)
def test_another_jws_is_refused(token: str) -> None:
    with pytest.raises(ParseError) as refused:
        split(token.encode(), max_size=99)
    assert HEADER not in str(refused.value)


def test_a_time_is_a_number_of_seconds() -> None:
    claims = parse_claims(b'{"a":1.5,"b":true,"c":-1,"d":9007199254740993,"e":"1","f":null}')
    assert numeric_date(claims, "a") == 1.5
    assert numeric_date(claims, "missing") is None
    for name in "bcdef":
        with pytest.raises(ParseError, match="seconds since 1970"):
            numeric_date(claims, name)


@given(st.text(), st.integers(1, 40))
def test_foreign_text_is_printable_and_printable_text_stays_as_it_is(text: str, limit: int) -> None:
    assert visible(text).isprintable()
    assert text.isprintable() == (visible(text) == text)
    assert visible_lines(text, text) == f"{visible(text)}\n" * 2
    line = one_line(text, limit)
    assert line.isprintable()
    assert len(line) == min(len(text), limit)
    assert line.endswith("…") or len(text) <= limit


def test_line_ends_escape_sequences_and_marks_of_direction_are_escaped() -> None:
    assert visible("a\nb\x1b[2J\u202ec\ud800") == r"a\nb\x1b[2J\u202ec\ud800"
    assert one_line("Denied\r\nby\x07you", 100) == "Denied  by you"
