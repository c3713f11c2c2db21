from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_providers.aws.node.definite_length import to_definite_length
from nodeattest_providers.errors import Denied, Reason


@pytest.mark.parametrize(
    ("ber", "der"),
    [
        ("3003020101", "3003020101"),
        ("30800201010000", "3003020101"),
        ("3080308002010100000000", "30053003020101"),
        ("30810402020101", "300402020101"),
        ("a080248004016104026263000000 00", "a0050403616263"),
        ("24060401610401 62", "04026162"),
        ("2480 2404 04026162 0401 63 0000", "0403616263"),
        ("0482000161", "040161"),
    ],
)
def test_lengths_become_definite_and_octet_strings_whole(ber: str, der: str) -> None:
    assert to_definite_length(bytes.fromhex(ber)).hex() == der


@pytest.mark.parametrize(
    "ber",
    [
        "",
        "30",
        "3080",
        "30800201",
        "3080020101",
        "3003020101ff",
        "300302010100",
        "0480",
        "0000",
        "1f0100",
        "24030201 01",
        "3084ffffffff00",
        "30ff",
        "3080" * 20 + "0000" * 20,
    ],
)
def test_what_is_no_element_is_denied(ber: str) -> None:
    with pytest.raises(Denied) as denied:
        to_definite_length(bytes.fromhex(ber))
    assert denied.value.reason is Reason.PLATFORM_DOCUMENT_MALFORMED


def test_bytes_beyond_the_limit_are_denied() -> None:
    with pytest.raises(Denied):
        to_definite_length(b"\x04\x82\xff\xf0" + bytes(0xFFF0))


@given(st.binary(max_size=64) | st.text("0123489afA", max_size=80).map(lambda text: text.encode()))
def test_any_bytes_give_a_fixed_point_or_denied(data: bytes) -> None:
    try:
        once = to_definite_length(data)
    except Denied:
        return
    assert to_definite_length(once) == once


@given(st.binary(max_size=300))
def test_a_long_content_survives(content: bytes) -> None:
    parts = b"".join(b"\x04" + bytes([len(part)]) + part for part in (content[:100], content[100:200], content[200:]))
    assert to_definite_length(b"\x24\x80" + parts + b"\0\0").endswith(content)
