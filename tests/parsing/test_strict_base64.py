"""Base64 and base64url: one spelling, read alike by everybody."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_parsing.strict_base64 import decode_base64, decode_base64url, encode_base64, encode_base64url
from nodeattest_parsing.values import ParseError


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


@pytest.mark.parametrize("text", ["QQ", "QQ=", "QR==", "QQ==\n", " QQ==", "QQ==QQ==", "QUE=A", "Q", "_-=="])
def test_base64_with_another_padding_bits_or_white_space_is_refused(text: str) -> None:
    with pytest.raises(ParseError) as raised:
        decode_base64(text)
    assert "Q" not in str(raised.value)


@pytest.mark.parametrize("text", ["QQ==", "QR", "Q", "+/8", "//8", "QQ\n", "Q Q", "é"])
def test_base64url_with_padding_bits_or_the_other_alphabet_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        decode_base64url(text)
