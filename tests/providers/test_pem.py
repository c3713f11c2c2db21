from __future__ import annotations

import base64

import pytest
from counted_calls import calls
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_providers import pem
from nodeattest_providers.errors import Denied, Reason

LABELS = ("ONE", "TWO WORDS")
CONTENTS = (b"first" * 20, b"2")
GOOD = pem.encode(zip(LABELS, CONTENTS, strict=True))
ONE = pem.encode([("ONE", CONTENTS[0])])
TWO = pem.encode([("TWO WORDS", b"2")])


def test_the_spelling_is_that_of_rfc_7468() -> None:
    assert pem.encode([("TWO WORDS", b"\x00" * 49)]) == (
        b"-----BEGIN TWO WORDS-----\n" + b"A" * 64 + b"\nAA==\n-----END TWO WORDS-----\n"
    )


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=2, max_size=2))
def test_decoding_undoes_encoding(contents: list[bytes]) -> None:
    assert pem.decode(pem.encode(zip(LABELS, contents, strict=True)), LABELS) == tuple(contents)


TAMPERED = {
    "empty": b"",
    "1 text before": b"hello\n" + GOOD,
    "1 newline before": b"\n" + GOOD,
    "1 byte order mark before": b"\xef\xbb\xbf" + GOOD,
    "text between": ONE + b"hello\n" + TWO,
    "newline between": ONE + b"\n" + TWO,
    "text after": GOOD + b"hello",
    "newline after": GOOD + b"\n",
    "no newline at the end": GOOD[:-1],
    "2 other order": TWO + ONE,
    "3 the first block twice": ONE + ONE + TWO,
    "4 the last block twice": GOOD + TWO,
    "a block missing": ONE,
    "5 an unknown block after": GOOD + pem.encode([("X", b"x")]),
    "5 an unknown block between": ONE + pem.encode([("X", b"x")]) + TWO,
    "6 header": GOOD.replace(b"ONE-----\n", b"ONE-----\nX: y\n\n", 1),
    "6 empty line as headers' end": GOOD.replace(b"ONE-----\n", b"ONE-----\n\n", 1),
    "8 label with a prefix": GOOD.replace(b"ONE", b"NEW ONE"),
    "8 label in lower case": GOOD.replace(b"ONE", b"one"),
    "9 other END label": GOOD.replace(b"END ONE", b"END TWO"),
    "9 no END": GOOD.replace(b"-----END ONE-----\n", b""),
    "9 CR only": GOOD.replace(b"\n", b"\r"),
    "9 CRLF": GOOD.replace(b"\n", b"\r\n"),
    "9 NUL": GOOD.replace(b"Zmly", b"Zm\x00y", 1),
    "space at a line's end": GOOD.replace(b"-----\n", b"----- \n", 1),
    "63 columns": b"-----BEGIN ONE-----\n" + base64.b64encode(b"f" * 60)[:63] + b"\n=\n-----END ONE-----\n" + TWO,
    "one long line": ONE.replace(b"\n", b"").replace(b"ONE-----", b"ONE-----\n", 1).replace(b"-----END", b"\n-----END")
    + b"\n"
    + TWO,
    "13 empty block": b"-----BEGIN ONE-----\n-----END ONE-----\n" + TWO,
    "13 not base64": b"-----BEGIN ONE-----\n!!!!\n-----END ONE-----\n" + TWO,
    "13 base64url": b"-----BEGIN ONE-----\n-_-_\n-----END ONE-----\n" + TWO,
    "stray trailing bits": ONE + TWO.replace(b"Mg==", b"Mh=="),
    "no padding": ONE + TWO.replace(b"Mg==", b"Mg"),
    "padding too long": ONE + TWO.replace(b"Mg==", b"Mg==="),
    "text after padding": ONE + TWO.replace(b"Mg==", b"Mg==Mg=="),
    "four hyphens": GOOD.replace(b"-----BEGIN", b"----BEGIN", 1),
}


@pytest.mark.parametrize("row", TAMPERED)
def test_another_spelling_is_denied(row: str) -> None:
    assert TAMPERED[row] != GOOD
    with pytest.raises(Denied) as denied:
        pem.decode(TAMPERED[row], LABELS)
    assert denied.value.reason is Reason.ENVELOPE_MALFORMED


def _canonical_or_denied(data: bytes) -> bool:
    """Whether decoding keeps its promise; any exception but Denied goes through and fails the test."""
    try:
        contents = pem.decode(data, LABELS)
    except Denied:
        return True
    return pem.encode(zip(LABELS, contents, strict=True)) == data


@given(st.binary(max_size=100))
def test_any_bytes_are_canonical_or_denied(data: bytes) -> None:
    assert _canonical_or_denied(data)


@given(st.integers(0, 300), st.integers(0, 8), st.binary(max_size=8))
def test_any_spliced_bytes_are_canonical_or_denied(position: int, cut: int, insert: bytes) -> None:
    start = position % len(GOOD)
    assert _canonical_or_denied(GOOD[:start] + insert + GOOD[start + cut :])


@pytest.mark.parametrize("piece", [b"-----BEGIN ONE-----\n", b"-----END ONE-----\n", ONE, b"\n", b"-"])
def test_a_large_text_is_denied_in_as_many_calls_as_a_small_one(piece: bytes) -> None:
    def decode(size: int) -> None:
        with pytest.raises(Denied):
            pem.decode(texts[size], LABELS)

    # A search in the large one that is quadratic would not end.
    texts = {size: b"-----BEGIN ONE-----\n" + piece * (size // len(piece)) for size in (1 << 10, 1 << 24)}
    assert calls(lambda: decode(1 << 24)) == calls(lambda: decode(1 << 10))
