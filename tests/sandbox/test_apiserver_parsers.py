"""The sandbox's own parsers take any bytes, and read PEM and patches as the real server does."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import pytest
from apiserver_kit import csr_object, pem_block, pem_request
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_sandbox.apiserver import csr
from nodeattest_sandbox.apiserver.gocsr import problem_of
from nodeattest_sandbox.apiserver.gopem import decode_pem
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from nodeattest_sandbox.apiserver.kinds import BUILT_IN
from nodeattest_sandbox.apiserver.patch import json_patch, merge_patch
from nodeattest_sandbox.apiserver.requestinfo import read_request
from nodeattest_sandbox.apiserver.selectors import read_selectors
from nodeattest_sandbox.apiserver.status_errors import ApiError
from nodeattest_sandbox.apiserver.store import ChangeKind, Key, Store

GOOD: Final = pem_request()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.binary())
def test_any_bytes_are_pem_or_not(data: bytes) -> None:
    assert all(isinstance(block.body, bytes) for block in decode_pem(data))


@given(st.lists(st.tuples(st.sampled_from(["A", "B B", "C-C"]), st.binary(min_size=1)), max_size=4))
def test_blocks_come_back_in_order(blocks: list[tuple[str, bytes]]) -> None:
    data = b"junk\n".join(pem_block(label, body) for label, body in blocks)
    assert [(block.label, block.body) for block in decode_pem(data)] == blocks


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_changed_byte_never_ends_the_server(place: int, value: int) -> None:
    spoilt = GOOD[:place] + bytes([value]) + GOOD[place + 1 :]
    causes = csr.validate(csr_object("a", spoilt))
    assert all(cause.field == "spec.request" for cause in causes)


@given(st.binary())
def test_any_certificate_bytes_are_accepted_or_refused(data: bytes) -> None:
    value = csr_object("a", GOOD)
    value["status"] = {"certificate": data.decode("latin-1")}
    assert all(cause.field == "status.certificate" for cause in csr.validate(value))


@given(JSON, JSON)
def test_merge_patch_is_idempotent(value: JsonValue, patch: JsonValue) -> None:
    once = merge_patch(value, patch)
    assert merge_patch(once, patch) == once


@given(st.dictionaries(st.text(), JSON, max_size=3), JSON)
def test_any_json_patch_applies_or_is_refused(value: JsonMap, patch: JsonValue) -> None:
    with suppress(ApiError):
        assert isinstance(json_patch(value, patch), dict)


@pytest.mark.parametrize("path", ["/none", "/list/9", "/list/-", "none", "/list/x"])
def test_replacing_what_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(ApiError):
        json_patch({"list": [1]}, [{"op": "replace", "path": path, "value": 2}])


@given(st.text(), st.text())
def test_any_selector_is_read_or_refused(labels: str, fields: str) -> None:
    with suppress(ApiError):
        match = read_selectors(BUILT_IN[0], labels, fields)
        assert match is None or isinstance(match({"metadata": {"labels": {"a": "b"}}}), bool)


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/nodes", {}, ("list", "", "nodes", "", "", "")),
        ("GET", "/api/v1/nodes", {"watch": "1"}, ("watch", "", "nodes", "", "", "")),
        ("GET", "/api/v1/nodes", {"fieldSelector": "metadata.name=a"}, ("list", "", "nodes", "", "", "a")),
        ("DELETE", "/api/v1/nodes", {}, ("deletecollection", "", "nodes", "", "", "")),
        ("GET", "/api/v1/namespaces/x", {}, ("get", "", "namespaces", "", "x", "x")),
        ("PUT", "/api/v1/namespaces/x/status", {}, ("update", "", "namespaces", "status", "x", "x")),
        ("PATCH", "/api/v1/namespaces/x/secrets/y", {}, ("patch", "", "secrets", "", "x", "y")),
        ("PUT", "/apis/g.io/v1/things/y/approval", {}, ("update", "g.io", "things", "approval", "", "y")),
        ("GET", "/apis/g.io/v1", {}, ("get", "", "", "", "", "")),
        ("GET", "/healthz", {}, ("get", "", "", "", "", "")),
    ],
)
def test_request_is_read_as_the_authorizer_needs_it(
    method: str, path: str, query: dict[str, str], expected: tuple[str, ...]
) -> None:
    info = read_request(method, path, query)
    assert (info.verb, info.group, info.resource, info.subresource, info.namespace, info.name) == expected


def test_store_gives_every_write_the_next_version_and_tells_it_once() -> None:
    store = Store(history_limit=3)
    subscription = store.subscribe("/things")
    for number in range(5):
        store.put("/things", {"metadata": {"name": "a"}, "n": number})
    store.put("/others", {"metadata": {"name": "b"}})
    store.delete("/things", Key("", "a"))
    versions = [change.now.version for change in subscription.pending]
    assert versions == [2, 3, 4, 5, 6, 8]
    assert [change.kind for change in subscription.pending][-1] is ChangeKind.DELETED
    assert store.oldest == 5
    assert [change.now.version for change in store.since("/things", store.oldest)] == [6, 8]


def test_snapshot_restores_objects_and_versions() -> None:
    store = Store()
    store.put("/things", {"metadata": {"name": "a", "ownerReferences": [{"uid": "u"}]}})
    store.put("/things", {"metadata": {"name": "b"}})
    copy = Store()
    copy.restore(store.snapshot())
    assert copy.version == store.version == copy.oldest
    assert [stored.data for stored in copy.list("/things")] == [stored.data for stored in store.list("/things")]
    assert copy.dependents("u") == [("/things", Key("", "a"))]


@given(st.integers(0, 400), st.integers(0, 12), st.binary(max_size=12))
def test_a_spliced_request_has_a_problem(position: int, cut: int, insert: bytes) -> None:
    der = next(decode_pem(GOOD)).body
    start = position % len(der)
    spliced = der[:start] + insert + der[start + cut :]
    assert bool(problem_of(spliced)) == (spliced != der)
