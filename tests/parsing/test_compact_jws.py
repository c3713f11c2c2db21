"""A JWS is split in one way, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_parsing.compact_jws import numeric_date, parse_claims, split
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_parsing.values import ParseError

HEADER = encode_base64url(b'{"alg":"none"}')


def test_a_jws_is_split_and_nothing_of_its_content_shows() -> None:
    token = f"{HEADER}.{encode_base64url(b'content')}.{encode_base64url(b'signature')}".encode()
    found = split(token, max_size=99)
    assert (found.header, found.payload, found.signature) == ({"alg": "none"}, b"content", b"signature")
    assert found.signed == token.rpartition(b".")[0]
    assert "content" not in repr(found)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"..",
        b"a.b",
        f"{HEADER}..".encode() + b"a" * 99,
        f"{HEADER}=..".encode(),
        f"{HEADER}. .".encode(),
        f"{HEADER}...".encode(),
        f"{encode_base64url(b'[]')}..".encode(),
        f"{encode_base64url(b'{}{}')}..".encode(),
        encode_base64url(b'{"a":1,"a":2}').encode() + b"..",
        b'{"alg":"none"}..',
    ],
)
def test_anything_else_is_refused(token: bytes) -> None:
    with pytest.raises(ParseError):
        split(token, max_size=99)


def test_a_time_is_a_number_of_seconds() -> None:
    claims = parse_claims(b'{"a":1.5,"b":true,"c":-1,"d":9007199254740993,"e":"1","f":null}')
    assert numeric_date(claims, "a") == 1.5
    assert numeric_date(claims, "missing") is None
    for name in "bcdef":
        with pytest.raises(ParseError, match="seconds since 1970"):
            numeric_date(claims, name)


@given(st.binary(max_size=64))
def test_any_bytes_have_an_answer(data: bytes) -> None:
    try:
        found = split(data, max_size=64)
    except ParseError:
        return
    assert data == found.signed + b"." + encode_base64url(found.signature).encode()
