"""Writing, reading, patching and removing objects, on the sandbox and on the real server."""

from __future__ import annotations

import pytest
from apiserver_kit import refusal

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at, value_at
from nodeattest_sandbox.client import Client, PatchKind


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


def operation(op: str, path: str, **more: str) -> JsonMap:
    return {"op": op, "path": path, **more}


def noted(**changes: JsonValue) -> JsonMap:
    return {"metadata": {"annotations": changes}}


AT = "/metadata/annotations"
PATCHES: list[tuple[PatchKind, JsonValue, JsonMap]] = [
    ("merge", noted(a=None, b="2"), {"b": "2", "c/d": "0"}),
    ("json", [operation("remove", f"{AT}/a"), operation("add", f"{AT}/b", value="2")], {"b": "2", "c/d": "0"}),
    ("json", [operation("replace", f"{AT}/c~1d", value="9")], {"a": "1", "c/d": "9"}),
    ("json", [operation("test", f"{AT}/a", value="1"), operation("remove", f"{AT}/a")], {"c/d": "0"}),
    ("json", [{"op": "move", "from": f"{AT}/a", "path": f"{AT}/z"}], {"z": "1", "c/d": "0"}),
    ("json", [{"op": "copy", "from": f"{AT}/a", "path": f"{AT}/z"}], {"a": "1", "z": "1", "c/d": "0"}),
]


@pytest.mark.parametrize(("kind", "patch", "expected"), PATCHES)
def test_patches_give_what_their_standard_says(
    admin: Client, namespace: str, kind: PatchKind, patch: JsonValue, expected: JsonMap
) -> None:
    body = config("a")
    map_at(body, "metadata")["annotations"] = {"a": "1", "c/d": "0"}
    admin.create(config_maps(namespace), body)
    assert map_at(admin.patch(f"{config_maps(namespace)}/a", patch, kind), "metadata", "annotations") == expected


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/data/a", "value": "2"},
        {"op": "remove", "path": "/data/none"},
        {"op": "add", "path": "/none/deep", "value": "2"},
    ],
    ids=str,
)
def test_json_patch_that_does_not_apply_changes_nothing(admin: Client, namespace: str, operation: JsonMap) -> None:
    before = admin.create(config_maps(namespace), config("a", a="1"))
    refused = refusal(lambda: admin.patch(f"{config_maps(namespace)}/a", [operation], "json"))
    assert (refused.code, refused.reason) == (422, "Invalid")
    assert admin.get(f"{config_maps(namespace)}/a") == before


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


def test_delete_with_preconditions_spares_another_object(admin: Client, namespace: str) -> None:
    admin.create(config_maps(namespace), config("a"))
    for field in ("uid", "resourceVersion"):
        options: JsonMap = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {field: "1"}}
        refused = refusal(lambda options=options: admin.delete(f"{config_maps(namespace)}/a", options))
        assert (refused.code, refused.reason) == (409, "Conflict")


def test_finalizers_hold_an_object_until_the_last_is_gone(admin: Client, namespace: str) -> None:
    body = config("a")
    map_at(body, "metadata")["finalizers"] = ["example.com/hold"]
    admin.create(config_maps(namespace), body)
    held = admin.delete(f"{config_maps(namespace)}/a")
    assert text_at(held, "metadata", "deletionTimestamp")
    assert text_at(admin.get(f"{config_maps(namespace)}/a"), "metadata", "deletionTimestamp")
    admin.patch(f"{config_maps(namespace)}/a", {"metadata": {"finalizers": None}})
    assert refusal(lambda: admin.get(f"{config_maps(namespace)}/a")).code == 404
