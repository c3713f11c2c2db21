"""A record beside the frozen dataclass of the same fields: what users see of one is what they see of the other."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_parsing.record import record


@record
class Kept:
    name: str
    secret: bytes = field(repr=False)
    port: int = 443
    tags: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def url(self) -> str:
        return f"https://{self.name}:{self.port}"


@record(kw_only=True)
class Named:
    name: str
    port: int = 443


class Compiled:
    """The same two, as ``dataclass`` makes them."""

    @dataclass(frozen=True, slots=True)
    class Kept:
        name: str
        secret: bytes = field(repr=False)
        port: int = 443
        tags: dict[str, int] = field(default_factory=dict[str, int])

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        name: str
        port: int = 443


PAIRS = {"Kept": (Kept, Compiled.Kept), "Named": (Named, Compiled.Named)}
values = st.lists(st.integers(0, 3), max_size=6)
named = st.dictionaries(st.sampled_from(["name", "secret", "port", "tags", "self", "other"]), st.integers(0, 3))


def seen(make: Callable[..., Any], given_values: list[int], given_names: dict[str, int]) -> object:
    """Fields, text and the positional pattern of what is made; that it is refused."""
    try:
        made = make(*given_values, **given_names)
    except TypeError:
        return TypeError
    text = repr(made).removeprefix("Compiled.")
    held = {each.name: getattr(made, each.name) for each in fields(made)}
    return text, held, made.__match_args__, dataclasses.asdict(made), dataclasses.is_dataclass(made)


@given(st.sampled_from(sorted(PAIRS)), values, named)
def test_a_record_takes_shows_and_refuses_what_the_frozen_dataclass_does(
    name: str, given_values: list[int], given_names: dict[str, int]
) -> None:
    ours, theirs = PAIRS[name]
    assert seen(ours, given_values, given_names) == seen(theirs, given_values, given_names)


@given(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
def test_records_are_equal_and_hash_alike_when_all_their_fields_do(a: int, b: int, c: int, d: int) -> None:
    one, other = Named(name=str(a), port=b), Named(name=str(c), port=d)
    assert (one == other) == ((a, b) == (c, d))
    assert one != Compiled.Named(name=str(a), port=b)
    if one == other:
        assert hash(one) == hash(other)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Kept("a", b""))  # it holds a dict


def test_a_record_can_neither_be_changed_nor_extended() -> None:
    kept = Kept("a", b"b")
    for name in ("name", "port", "more"):
        with pytest.raises(FrozenInstanceError):
            setattr(kept, name, "c")
        with pytest.raises(FrozenInstanceError):
            delattr(kept, name)
    assert not hasattr(kept, "__dict__")
    assert (kept.name, kept.port, kept.url) == ("a", 443, "https://a:443")


def test_what_a_default_factory_makes_is_made_for_each_record() -> None:
    assert Kept("a", b"").tags is not Kept("a", b"").tags


def test_records_are_replaced_copied_and_matched() -> None:
    kept = Kept("a", b"b", tags={"c": 1})
    assert replace(kept, port=1) == Kept("a", b"b", 1, {"c": 1})
    assert copy.copy(kept) == copy.deepcopy(kept) == kept
    match kept:
        case Kept(name, secret):
            assert (name, secret) == ("a", b"b")


def test_a_class_that_shared_methods_would_not_serve_is_no_record() -> None:
    class Checks:
        def __post_init__(self) -> None: ...

    class Compares:
        def __hash__(self) -> int:
            return 0

    class Inherits(Named): ...

    for cls in (Checks, Compares, Inherits):
        with pytest.raises(TypeError, match="inherits, or has a method"):
            record(cls)
