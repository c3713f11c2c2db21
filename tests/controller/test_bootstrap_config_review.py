"""AdmissionReviews and JSON patches: bytes of anybody, and what an API server makes of our answers."""

from __future__ import annotations

import contextlib
import json
from typing import cast

import hypothesis
import hypothesis.strategies as st
import jsonpatch
import pytest
from bootstrap_config_kit import config, review

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.admission_review import (
    MAX_BODY,
    MAX_VALUES,
    parse,
)
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"])
KEYS = st.sampled_from(["a", "b/c", "d~e", "~1", ""])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
OBJECTS = cast("st.SearchStrategy[JsonObject]", st.dictionaries(KEYS, VALUES, max_size=4))


def encoded(**request: JsonValue) -> bytes:
    return json.dumps(review(config(), **request)).encode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "a JSON object"),
        (b"{}", "AdmissionReview of admission.k8s.io/v1"),
        (json.dumps({**review(config()), "request": None}).encode(), "request.uid"),
        (encoded(uid=""), "request.uid"),
        (encoded(uid="a\nb"), "request.uid"),
        (encoded(operation=None), "request.operation"),
        (encoded(object=None), "request.object: an object, for CREATE"),
        (encoded(operation="UPDATE"), "request.oldObject: an object, for UPDATE"),
        (encoded(kind={}), "request.kind.kind"),
        (b" " * (MAX_BODY + 1), f"at most {MAX_BODY} bytes"),
        (b"[" + b"0," * MAX_VALUES + b"0]", f"at most {MAX_VALUES} values"),
        (encoded().replace(b'"operation"', b'"operation": "DELETE", "operation"', 1), "a JSON object: each key once"),
    ],
)
def test_what_is_no_question_is_refused_in_words(body: bytes, expected: str) -> None:
    with pytest.raises(Denied, match=f"expected ({expected})") as refusal:
        parse(body)
    assert refusal.value.reason is Reason.ADMISSION_REVIEW_MALFORMED


@pytest.mark.parametrize(
    "request_", [{"operation": "DELETE", "object": None}, {"operation": "CONNECT"}, {"subResource": "status"}]
)
def test_what_is_no_business_of_ours_is_answerable_all_the_same(request_: dict[str, JsonValue]) -> None:
    assert parse(encoded(**request_)).operation is None


@hypothesis.given(st.binary(max_size=200) | OBJECTS.map(lambda value: json.dumps(review(config(), **value)).encode()))
def test_any_bytes_are_a_question_or_refused(body: bytes) -> None:
    with contextlib.suppress(Denied):
        assert parse(body).uid


@hypothesis.given(OBJECTS, OBJECTS)
def test_a_patch_makes_one_object_of_the_other(before: JsonObject, after: JsonObject) -> None:
    operations = admission_review.patch(before, after)
    made = jsonpatch.apply_patch(before, operations)
    assert not admission_review.paths(made, after)
    assert json.dumps(made, sort_keys=True) == json.dumps(after, sort_keys=True)
    assert bool(operations) == bool(admission_review.paths(before, after))


def test_true_is_not_one() -> None:
    assert admission_review.paths({"a": [True]}, {"a": [1]}) == {("a",)}


def test_paths_touch_where_one_leads_to_the_other() -> None:
    discovery, join = frozenset({("join", "discovery", "token")}), frozenset({("join",)})
    assert admission_review.touch_each_other(discovery, join)
    assert admission_review.touch_each_other(join, discovery)
    assert not admission_review.touch_each_other(discovery, frozenset({("join", "nodeRegistration"), ("files",)}))
