from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_kube import paths
from nodeattest_kube.addresses import environment_proxy
from nodeattest_kube.answers import OBJECT, LineBuffer, parse_event, parse_json


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../secrets/x", "/" * 100_000])
def test_a_name_cannot_leave_its_segment(name: str) -> None:
    for make in (
        lambda: paths.core_path("secrets", name),
        lambda: paths.core_path("secrets", namespace=name),
        lambda: paths.object_path("g", "v1", "things", "t", subresource=name),
    ):
        with pytest.raises(ValueError, match="segment") as caught:
            make()
        assert len(str(caught.value)) < 200


@given(st.text(min_size=1))
def test_any_name_stays_one_segment(name: str) -> None:
    try:
        path = paths.core_path("secrets", name)
    except ValueError:
        return
    assert path.count("/") == 4
    assert path.isascii()
    assert not {"?", "#", " ", "\n", "\r", "\\"} & set(path)
    assert unquote(path.rpartition("/")[2]) == name


@given(st.lists(st.binary(max_size=12)), st.lists(st.integers(0, 40)))
def test_lines_come_out_as_they_went_in_however_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    stream = b"".join(line + b"\n" for line in lines)
    edges = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    assembler = LineBuffer(12)
    out = [line for start, end in pairwise(edges) for line in assembler.feed(stream[start:end])]
    assert out == [line for line in lines if line.strip()]
    assert not assembler.incomplete


@given(st.binary(max_size=100))
def test_any_bytes_are_an_object_or_a_value_error(body: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(parse_json(body), dict)


def test_the_last_of_duplicate_keys_counts_in_what_an_api_server_says_and_nowhere_else() -> None:
    line = b'{"type":"ADDED","object":{"kind":"A","kind":"Node","metadata":{"name":"n"}}}'
    event = parse_event(line, "/api/v1/nodes", OBJECT.values, None)
    assert event is not None
    assert event.object["kind"] == "Node"
    with pytest.raises(ValueError, match="duplicate"):
        parse_json(line)


SERVER = "https://api.example.test:6443"


@pytest.mark.parametrize(
    ("server", "exempt", "direct"),
    [
        (SERVER, "", False),
        (SERVER, "*", True),
        (SERVER, "example.test", True),
        (SERVER, ".example.test", True),
        (SERVER, "*.example.test", True),
        (SERVER, "API.example.test", True),
        (SERVER, "api.example.test:6443", True),
        (SERVER, "api.example.test:443", False),
        (SERVER, "le.test", False),
        (SERVER, "other, example.test", True),
        ("https://10.96.0.1", "10.96.0.0/12", True),
        ("https://10.96.0.1", "10.96.0.1", True),
        ("https://10.96.0.1", "10.96.0.1:443", True),
        ("https://10.96.0.1:6443", "10.96.0.1:443", False),
        ("https://192.168.0.1", "10.96.0.0/12", False),
        ("https://[fd00::1]", "fd00::/8", True),
        ("https://[fd00::1]", "[fd00::1]:443", True),
        ("https://[fd00::1]", "fd00::1", True),
        ("https://127.0.0.1:6443", "", True),
        ("https://localhost:6443", "", True),
    ],
)
def test_no_proxy_is_read_as_go_reads_it(server: str, exempt: str, *, direct: bool) -> None:
    environment = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": exempt}
    assert environment_proxy(server, environment) == (None if direct else "http://proxy:3128")
