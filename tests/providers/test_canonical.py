from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from nodeattest_providers import canonical_json
from nodeattest_providers.canonical_json import Fields
from nodeattest_providers.errors import Denied
from nodeattest_providers.node_interface import JsonObject


def _array(unit: bytes, times: int) -> bytes:
    return b'{"a":[' + b",".join([unit] * times) + b"]}"


@pytest.mark.parametrize("unit", [b"1", b"[]", b"{}", b'""', b"null", b"true"])
def test_the_number_of_values_is_bounded_both_ways(unit: bytes) -> None:
    most = canonical_json.loads(_array(unit, canonical_json.MAX_VALUES - 2))
    assert canonical_json.dumps(most) == _array(unit, canonical_json.MAX_VALUES - 2)
    with pytest.raises(Denied, match="more than 4096 values"):
        canonical_json.loads(_array(unit, canonical_json.MAX_VALUES - 1))
    with pytest.raises(ValueError, match="more than 4096 values"):
        canonical_json.dumps(json.loads(_array(unit, canonical_json.MAX_VALUES - 1)))


def test_strings_are_escaped_as_rfc_8785_does() -> None:
    value: JsonObject = {"a": '\b\t\n\f\r\x0b\x1f\x7f"\\/é€😀'}
    assert canonical_json.dumps(value) == rb"""{"a":"\b\t\n\f\r\u000b\u001f""" + b"\x7f" + r'\"\\/é€😀"}'.encode()


_SCHEMA = "test/v1"


def _fields(text: str, required: set[str], optional: set[str] | None = None) -> Fields:
    return Fields.of(json.loads(text), _SCHEMA, required, optional or set())


def test_a_closed_schema_gives_typed_values() -> None:
    fields = _fields(
        '{"i":3,"is":[1,2],"o":"AAE","os":["AA",""],"t":"x","n":{"a":1},"ns":[{"a":2}]}',
        {"i", "is", "o", "os", "t", "n", "ns"},
        {"absent"},
    )
    assert fields.integer("i", 3, 3) == 3
    assert fields.integers("is", 2, 1, 2) == (1, 2)
    assert fields.octets("o", 2, 2) == b"\x00\x01"
    assert fields.octets_list("os", 2, 0, 1) == (b"\x00", b"")
    assert fields.text("t", 1, 1) == "x"
    assert fields.nested("n", {"a"}).integer("a", 0, 9) == 1
    assert "absent" not in fields
    assert "i" in fields


def _refuses(read: Callable[[], object]) -> bool:
    try:
        read()
    except Denied:
        return True
    return False


@pytest.mark.parametrize(
    "text", ["true", "null", "[]", "{}", "7", "0", '""', '"xxxx"', '"AAAAAA"', '["AA","AA"]', "[8]", '["é"]', "[true]"]
)
def test_a_value_of_the_wrong_type_or_size_is_denied(text: str) -> None:
    fields = _fields(f'{{"a":{text}}}', {"a"})
    refused = sum(
        _refuses(read)
        for read in (
            lambda: fields.integer("a", 1, 6),
            lambda: fields.integers("a", 1, 1, 6),
            lambda: fields.octets("a", 1, 2),
            lambda: fields.octets_list("a", 1, 1, 2),
            lambda: fields.text("a", 1, 3),
            lambda: fields.nested("a", {"b"}),
            lambda: fields.flag("a"),
        )
    )
    allowed = {"[]": 2, "true": 1}.get(text, 0)  # an empty array is an array of anything
    assert refused == 7 - allowed
