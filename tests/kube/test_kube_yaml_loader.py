from __future__ import annotations

import time

import pytest
import yaml

from nodeattest_kube.yaml_loader import MAX_DEPTH, BoundedLoader


def loaded(text: str) -> object:
    return yaml.load(text, Loader=BoundedLoader)  # noqa: S506 - a SafeLoader


@pytest.mark.parametrize("text", ["a: &a 1\nb: *a\n", "a: &a [*a]\n", "a: &a {k: v}\nb: {<<: [*a, *a]}\n"])
def test_an_alias_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="an alias"):
        loaded(text)


@pytest.mark.parametrize("text", ["[" * 500_000, "{" * 500_000, "- " * 500_000, "{a: " * 200_000])
def test_deep_nesting_is_refused_before_it_costs_time(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(yaml.YAMLError, match="nesting deeper"):
        loaded(text)
    assert time.perf_counter() - start < 5  # without the bound: hours


def test_nesting_up_to_the_bound_is_read() -> None:
    depth = MAX_DEPTH - 1
    assert loaded("[" * depth + "]" * depth) is not None
    assert loaded("a: 1\nb: [x, {c: null}]\n") == {"a": 1, "b": ["x", {"c": None}]}
