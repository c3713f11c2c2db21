"""Elements are told apart by this project; pyasn1, which knows nothing of it, is the oracle."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyasn1.codec.der import decoder, encoder
from pyasn1.type import univ

from nodeattest_providers import der
from nodeattest_providers.der import NotDer, Tag

_INNER = st.recursive(
    st.binary(max_size=140).map(lambda content: _element(Tag.OCTET_STRING, content)),
    lambda inner: st.lists(inner, max_size=4).map(lambda parts: _element(Tag.SEQUENCE, b"".join(parts))),
    max_leaves=12,
)


def _element(kind: int, content: bytes) -> bytes:
    if len(content) < 0x80:
        return bytes([kind, len(content)]) + content
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([kind, 0x80 | len(size)]) + size + content


@st.composite
def _spoilt(draw: st.DrawFn) -> bytes:
    """One constructed element, of which a few bytes near the front were changed, added or taken away."""
    data = bytearray(_element(Tag.SEQUENCE, b"".join(draw(st.lists(_INNER, max_size=4)))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, min(len(data), 16)))
        new = bytes([draw(st.sampled_from((0, 1, 0x04, 0x1F, 0x20, 0x30, 0x80, 0x81, 0x82, 0xFF)))])
        data[at : at + draw(st.integers(0, 1))] = draw(st.sampled_from((new, b"")))
    return bytes(data)


def _integer(number: int) -> bytes:
    return cast("bytes", encoder.encode(univ.Integer(number)))


def _oracle(data: bytes, spec: object) -> Any:
    """Decode by pyasn1, which takes longer lengths than needed, and encode again, which shows them."""
    value, rest = cast("tuple[Any, bytes]", decoder.decode(data, asn1Spec=spec))
    assert not rest
    assert cast("bytes", encoder.encode(value)) == data
    return value


@given(_spoilt())
@example(b"\x30\x80\x00\x00")
@example(b"\x30\x81\x02\x05\x00")
@example(b"\x30\x82\x00\x02\x05\x00")
def test_elements_that_pass_are_those_of_an_independent_parser(data: bytes) -> None:
    try:
        found = der.elements(data, Tag.SEQUENCE, at_most=99)
    except NotDer:
        return
    assert [bytes(each) for each in _oracle(data, univ.SequenceOf(componentType=univ.Any()))] == list(found)
    assert data == _element(Tag.SEQUENCE, b"".join(found))


SPOILT = {
    "nothing": b"",
    "no length": b"\x30",
    "cut short": b"\x30\x05\x04\x01\x00",
    "length too small": b"\x30\x01\x04\x01\x00",
    "trailing byte": b"\x30\x03\x04\x01\x00\x00",
    "another type": b"\x31\x03\x04\x01\x00",
    "indefinite length": b"\x30\x80\x04\x01\x00\x00\x00",
    "long form of a short length": b"\x30\x81\x03\x04\x01\x00",
    "leading zero in a length": b"\x30\x82\x00\x80" + bytes.fromhex("047e") + bytes(126),
    "long form inside": b"\x30\x04\x04\x81\x01\x00",
    "cut short inside": b"\x30\x03\x04\x02\x00",
    "end of contents inside": b"\x30\x02\x00\x00",
    "tag number in more octets inside": b"\x30\x03\x1f\x01\x00",
    "length beyond memory": b"\x30\xff" + b"\x01" * 127,
}


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT)
def test_another_encoding_is_not_der(spoilt: bytes) -> None:
    for read in (lambda: der.elements(spoilt, Tag.SEQUENCE, at_most=99), lambda: der.integer(spoilt)):
        with pytest.raises(NotDer):
            read()


@given(st.binary(max_size=12) | st.integers(-(2**70), 2**70).map(_integer))
@example(b"\x02\x02\x00\x01")
@example(b"\x06\x03\x80\x80\x01")
def test_a_value_that_passes_is_that_of_an_independent_parser(data: bytes) -> None:
    for read, kind in ((der.integer, univ.Integer()), (der.oid, univ.ObjectIdentifier())):
        try:
            value = read(data)
        except NotDer:
            continue
        found = _oracle(data, kind)
        assert value == (tuple(found) if isinstance(value, tuple) else int(found))
