"""Writing, reading, watching and removing objects, on the sandbox and on the real server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from apiserver_kit import refusal
from needs import not_possible

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at, value_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane, StartControlPlane


def secrets(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"


def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def config(name: str, labels: dict[str, str] | None = None, **data: str) -> JsonMap:
    metadata: JsonMap = {"name": name, **({"labels": dict(labels)} if labels else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def names(items: list[JsonMap]) -> list[str]:
    return [text_at(item, "metadata", "name") for item in items]


def test_server_owns_its_metadata(admin: Client, namespace: str) -> None:
    body = config("a")
    map_at(body, "metadata").update(
        {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7, "selfLink": "/x"}
    )
    stored = admin.create(config_maps(namespace), body)
    assert text_at(stored, "metadata", "uid") != "mine"
    assert text_at(stored, "metadata", "creationTimestamp") > "2025"
    assert text_at(stored, "metadata", "namespace") == namespace
    assert text_at(stored, "metadata", "resourceVersion").isdigit()


def test_update_on_an_old_version_is_a_conflict(admin: Client, namespace: str) -> None:
    old = admin.create(config_maps(namespace), config("a", x="1"))
    admin.patch(f"{config_maps(namespace)}/a", {"data": {"x": "2"}})
    refused = refusal(lambda: admin.replace(f"{config_maps(namespace)}/a", old))
    assert (refused.code, refused.reason) == (409, "Conflict")
    assert text_at(refused.status, "message") == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    stale: JsonMap = {"metadata": {"resourceVersion": text_at(old, "metadata", "resourceVersion")}, "data": {"x": "3"}}
    assert refusal(lambda: admin.patch(f"{config_maps(namespace)}/a", stale)).code == 409


def test_lease_update_needs_a_version(admin: Client, namespace: str) -> None:
    value = admin.create(leases(namespace), {"metadata": {"name": "a"}, "spec": {"holderIdentity": "x"}})
    map_at(value, "metadata").pop("resourceVersion")
    refused = refusal(lambda: admin.replace(f"{leases(namespace)}/a", value))
    assert (refused.code, refused.fields) == (422, ["metadata.resourceVersion"])


def test_a_merge_patch_removes_sets_and_keeps(admin: Client, namespace: str) -> None:
    body = config("a")
    map_at(body, "metadata")["annotations"] = {"a": "1", "c/d": "0"}
    admin.create(config_maps(namespace), body)
    patched = admin.patch(f"{config_maps(namespace)}/a", {"metadata": {"annotations": {"a": None, "b": "2"}}})
    assert map_at(patched, "metadata", "annotations") == {"b": "2", "c/d": "0"}


def test_labels_select(admin: Client, namespace: str) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2", "y": ""}), ("c", {})):
        admin.create(config_maps(namespace), config(name, labels))
    expected = {
        "x=1": ["a"],
        "x==1": ["a"],
        "x!=1": ["b", "c"],
        "x": ["a", "b"],
        "!x": ["c"],
        "x,y": ["b"],
        "x=2,y=": ["b"],
    }
    path = config_maps(namespace)
    found = {
        selector: [n for n in names(admin.list(path, labelSelector=selector)) if n in "abc"] for selector in expected
    }
    assert found == expected


def test_pages_show_the_state_of_the_first(admin: Client, namespace: str) -> None:
    path = secrets(namespace)
    for number in range(5):
        admin.create(path, {"metadata": {"name": f"s{number}"}})
    first = admin.get(path, limit="2")
    assert value_at(first, "metadata", "remainingItemCount") == 3
    admin.create(path, {"metadata": {"name": "s9"}})
    admin.delete(f"{path}/s4")
    second = admin.get(path, limit="2", **{"continue": text_at(first, "metadata", "continue")})
    last = admin.get(path, limit="2", **{"continue": text_at(second, "metadata", "continue")})
    pages = [names(list(maps_at(page, "items"))) for page in (first, second, last)]
    assert pages == [["s0", "s1"], ["s2", "s3"], ["s4"]]
    versions = {text_at(page, "metadata", "resourceVersion") for page in (first, second, last)}
    assert len(versions) == 1
    assert "continue" not in map_at(last, "metadata")


def test_finalizers_hold_an_object_until_the_last_is_gone(admin: Client, namespace: str) -> None:
    body = config("a")
    map_at(body, "metadata")["finalizers"] = ["example.com/hold"]
    admin.create(config_maps(namespace), body)
    held = admin.delete(f"{config_maps(namespace)}/a")
    assert text_at(held, "metadata", "deletionTimestamp")
    assert text_at(admin.get(f"{config_maps(namespace)}/a"), "metadata", "deletionTimestamp")
    admin.patch(f"{config_maps(namespace)}/a", {"metadata": {"finalizers": None}})
    assert refusal(lambda: admin.get(f"{config_maps(namespace)}/a")).code == 404


# Watches


def told(events: list[JsonMap]) -> list[tuple[str, str]]:
    """Return type and name of each event that is no bookmark."""
    known = [(text_at(event, "type"), text_at(event, "object", "metadata", "name")) for event in events]
    return [(kind, name) for kind, name in known if kind != "BOOKMARK" and name != "kube-root-ca.crt"]


def version_of(value: JsonMap) -> str:
    return text_at(value, "metadata", "resourceVersion")


def test_watch_without_a_version_begins_with_what_is_there(admin: Client, namespace: str) -> None:
    admin.create(config_maps(namespace), config("a"))
    admin.create(config_maps(namespace), config("b"))
    assert sorted(told(admin.watch(config_maps(namespace)))) == [("ADDED", "a"), ("ADDED", "b")]


def test_watch_from_a_version_tells_every_later_change_once(admin: Client, namespace: str) -> None:
    path = config_maps(namespace)
    first = admin.create(path, config("a"))
    admin.create(path, config("b"))
    admin.patch(f"{path}/a", {"data": {"x": "1"}})
    admin.delete(f"{path}/b")
    events = admin.watch(path, resourceVersion=version_of(first))
    assert told(events) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    versions = [int(text_at(event, "object", "metadata", "resourceVersion")) for event in events]
    assert versions == sorted(set(versions))


def test_entering_and_leaving_a_selection_is_added_and_deleted(admin: Client, namespace: str) -> None:
    path = config_maps(namespace)
    start = version_of(admin.create(path, config("a", {"x": "no"})))
    for label in ("yes", "yes", "no"):
        admin.patch(f"{path}/a", {"metadata": {"labels": {"x": label, "round": str(time.monotonic_ns())}}})
    events = admin.watch(path, resourceVersion=start, labelSelector="x=yes")
    assert told(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_bookmark_comes_before_the_watch_ends(admin: Client, namespace: str, control_plane_kind: str) -> None:
    if control_plane_kind == "real":
        not_possible("a real server sends a bookmark about once a minute, too late for a test")
    path = config_maps(namespace)
    admin.create(path, config("a"))
    start = version_of(admin.get(path))
    admin.create(f"/api/v1/namespaces/{namespace}/secrets", {"metadata": {"name": "elsewhere"}})
    events = admin.watch(path, seconds=1, resourceVersion=start, allowWatchBookmarks="true")
    bookmarks = [map_at(event, "object") for event in events if event["type"] == "BOOKMARK"]
    assert bookmarks
    last = bookmarks[-1]
    assert (text_at(last, "kind"), text_at(last, "apiVersion")) == ("ConfigMap", "v1")
    assert int(version_of(last)) >= int(start)
    assert not text_at(last, "metadata", "name")


@pytest.fixture(scope="module")
def forgetful(start_control_plane: StartControlPlane) -> Iterator[ControlPlane]:
    """A control plane of its own: the others' watches must not lose their history."""
    with start_control_plane("forgetful") as plane:
        yield plane


def test_old_version_is_told_410_in_the_stream(forgetful: ControlPlane) -> None:
    client = forgetful.client()
    old = version_of(client.create(config_maps("default"), config("old")))
    for number in range(3):
        client.create(config_maps("default"), config(f"n{number}"))
    forgetful.restart()
    (event,) = forgetful.client().watch(config_maps("default"), resourceVersion=old)
    assert event["type"] == "ERROR"
    assert (value_at(event, "object", "code"), value_at(event, "object", "reason")) == (410, "Expired")


def test_objects_outlive_a_restart(forgetful: ControlPlane) -> None:
    stored = forgetful.client().create(config_maps("default"), config("kept"))
    server, pids = forgetful.server, forgetful.pids
    forgetful.restart()
    assert forgetful.server == server
    assert not set(forgetful.pids.values()) & set(pids.values())
    assert forgetful.client().get(f"{config_maps('default')}/kept") == stored
