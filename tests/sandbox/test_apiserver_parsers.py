"""The sandbox's own parsers take any bytes, and read PEM and patches as the real server does."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from nodeattest_sandbox.apiserver.kinds import BUILT_IN
from nodeattest_sandbox.apiserver.patch import json_patch, merge_patch
from nodeattest_sandbox.apiserver.rbac import read_request
from nodeattest_sandbox.apiserver.selectors import read_selectors
from nodeattest_sandbox.apiserver.status_errors import ApiError
from nodeattest_sandbox.apiserver.store import ChangeKind, Key, Store

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


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
    store.put("/things", {"metadata": {"name": "a"}})
    store.put("/things", {"metadata": {"name": "b"}})
    copy = Store()
    copy.restore(store.snapshot())
    assert copy.version == store.version == copy.oldest
    assert [stored.data for stored in copy.list("/things")] == [stored.data for stored in store.list("/things")]
