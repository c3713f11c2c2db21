"""Watches, on the sandbox and on the real server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from needs import not_possible

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at, value_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane, StartControlPlane


def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def config(name: str, **labels: str) -> JsonMap:
    return {"metadata": {"name": name, "labels": dict(labels)}}


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
    start = version_of(admin.create(path, config("a", x="no")))
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
    forgetful.expire_history()
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
