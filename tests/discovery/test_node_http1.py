"""HTTP/1.1 on a node: what is sent, which framings are read, and that all others are refused."""

from __future__ import annotations

import io
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_discovery.node.http1 import ProtocolError, ResponseReader, request_head

LIMIT = 1 << 16
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def stream(data: bytes) -> io.BufferedReader:
    return cast("io.BufferedReader", io.BufferedReader(io.BytesIO(data)))


def reader(data: bytes) -> ResponseReader:
    return ResponseReader(stream(data))


def body_of(data: bytes) -> bytes:
    return reader(data).read(LIMIT)


def test_a_request_is_its_line_its_fields_and_an_empty_line() -> None:
    assert (
        request_head("GET", "/a?b=c", [("Host", "h:1"), ("X", "\xe4 b")])
        == b"GET /a?b=c HTTP/1.1\r\nHost: h:1\r\nX: \xe4 b\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("method", "target", "name", "value"),
    [
        ("GET ", "/", "A", "b"),
        ("", "/", "A", "b"),
        ("GET", "/ HTTP/1.1\r\nX: y\r\n", "A", "b"),
        ("GET", "/a b", "A", "b"),
        ("GET", "/\xe4", "A", "b"),
        ("GET", "", "A", "b"),
        ("GET", "/", "A\r\nB", "b"),
        ("GET", "/", "A:", "b"),
        ("GET", "/", "", "b"),
        ("GET", "/", "A", "b\r\nC: d"),
        ("GET", "/", "A", "b\n"),
        ("GET", "/", "A", "\0"),
        ("GET", "/", "A", "\u20ac"),
    ],
)
def test_nothing_that_would_begin_another_line_is_sent(method: str, target: str, name: str, value: str) -> None:
    with pytest.raises(ValueError, match="no such"):
        request_head(method, target, [(name, value)])


WHOLE: dict[str, tuple[bytes, bytes]] = {
    "a length": (OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
    "a length twice, the same": (OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    "a length of nothing": (OK + b"Content-Length: 0\r\n\r\n", b""),
    "no reason phrase": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", b"x"),
    "chunks": (CHUNKED + b"2\r\nhe\r\n03;a=b\r\nllo\r\n0\r\n\r\n", b"hello"),
    "chunks, large as their letters": (CHUNKED + b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    "a trailer": (CHUNKED + b"1\r\nx\r\n0\r\nA: b\r\n\r\n", b"x"),
    "chunked, spelt otherwise": (OK + b"transfer-encoding:Chunked\r\n\r\n0\r\n\r\n", b""),
    "an interim response": (b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", b"x"),
    "white space around a value": (OK + b"Content-Length:\t 1 \t\r\n\r\nx", b"x"),
    "no body, whatever the length": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b""),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_body_is_read_to_its_end_and_no_further(case: str) -> None:
    data, body = WHOLE[case]
    file = stream(data + b"next")
    response = ResponseReader(file)
    assert response.read(LIMIT) == body
    assert (response.has_ended, response.keeps_connection) == (True, True)
    assert file.read() == b"next"


@pytest.mark.parametrize(
    "head", [OK, OK + b"Connection: close\r\nContent-Length: 1\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n"]
)
def test_a_connection_that_ends_with_the_response_is_not_used_again(head: bytes) -> None:
    response = reader(head + b"\r\nx")
    assert response.read(LIMIT) == b"x"
    assert response.has_ended
    assert not response.keeps_connection


REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "another protocol": b"SSH-2.0-OpenSSH\r\n",
    "another version": b"HTTP/2.0 200 OK\r\n\r\n",
    "a status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "a status that is none": b"HTTP/1.1 099 OK\r\n\r\n",
    "another protocol, nobody asked for": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "a line end that is none": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "a field's line end that is none": OK + b"A: b\nContent-Length: 0\r\n\r\n",
    "a carriage return in a value": OK + b"A: b\rc\r\n\r\n",
    "a zero in a value": OK + b"A: \0\r\n\r\n",
    "spaces and what ends no line": OK + b"A:" + b" " * 16_000 + b"\0\r\n\r\n",
    "tabs around a value without end": OK + b"A:" + b"\t" * 8_000 + b"b" + b"\t" * 8_000,
    "a chunk's spaces": CHUNKED + b"0" + b" " * 16_000 + b"\r\n\r\n",
    "a folded field": OK + b"A: b\r\n c\r\n\r\n",
    "a space before the colon": OK + b"Content-Length : 0\r\n\r\n",
    "no name": OK + b": b\r\n\r\n",
    "no colon": OK + b"A\r\n\r\n",
    "too many fields": OK + b"A: b\r\n" * 101 + b"\r\n",
    "a field without end": OK + b"A: " + b"b" * (1 << 20),
    "a head without end": OK + b"A: b\r\n",
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    "lengths in a list": OK + b"Content-Length: 1, 1\r\n\r\nx",
    "a length with a sign": OK + b"Content-Length: +1\r\n\r\nx",
    "a length in other digits": OK + b"Content-Length: \xb2\r\n\r\nxx",
    "no length": OK + b"Content-Length:\r\n\r\n",
    "a length that nothing has": OK + b"Content-Length: " + b"9" * 19 + b"\r\n\r\nx",
    "chunks beside a length": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
    "chunks twice": OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunks in two fields": OK + 2 * b"Transfer-Encoding: chunked\r\n" + b"\r\n0\r\n\r\n",
    "another coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a body that is cut off": OK + b"Content-Length: 3\r\n\r\nxx",
    "a chunk that is cut off": CHUNKED + b"3\r\nxx",
    "chunks without end": CHUNKED + b"1\r\nx\r\n",
    "no chunk": CHUNKED,
    "a chunk's size with a prefix": CHUNKED + b"0x1\r\nx\r\n0\r\n\r\n",
    "a chunk's size with a sign": CHUNKED + b"+1\r\nx\r\n0\r\n\r\n",
    "a chunk's size that nothing has": CHUNKED + b"1" + b"0" * 15 + b"\r\nx",
    "a chunk's line end that is none": CHUNKED + b"1\nx\r\n0\r\n\r\n",
    "a chunk that is longer than it says": CHUNKED + b"1\r\nxx\r\n0\r\n\r\n",
    "a trailer that is none": CHUNKED + b"0\r\nA\r\n\r\n",
}


@pytest.mark.parametrize("case", REFUSED)
def test_any_other_framing_is_refused(case: str) -> None:
    with pytest.raises(ProtocolError):
        body_of(REFUSED[case])


def test_reading_stops_within_a_piece_of_the_limit() -> None:
    response = reader(OK + b"Content-Length: 10000000\r\n\r\n" + b"x" * 10_000_000)
    assert LIMIT < len(response.read(LIMIT)) <= 2 * LIMIT
    assert not response.has_ended


def test_lines_come_one_by_one_across_chunks_and_the_rest_after_them() -> None:
    response = reader(CHUNKED + b"4\r\na\nbc\r\n3\r\nd\ne\r\n2\r\nf\n\r\n0\r\n\r\n")
    assert [response.readline(LIMIT) for _ in range(2)] == [b"a\n", b"bcd\n"]
    assert not response.has_ended
    assert response.read(LIMIT) == b"ef\n"
    assert response.has_ended
    assert response.readline(LIMIT) == b""


def test_a_line_beyond_the_limit_comes_without_its_end() -> None:
    assert reader(OK + b"\r\n" + b"x" * 50 + b"\n").readline(20) == b"x" * 20


@given(st.binary(max_size=300))
def test_whatever_comes_is_a_response_or_refused(data: bytes) -> None:
    for head in (b"", OK, CHUNKED, OK + b"\r\n"):
        try:
            response = reader(head + data)
            assert len(response.read(LIMIT)) <= len(data)
        except ProtocolError:
            pass
