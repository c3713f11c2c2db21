"""Custom resources, on the sandbox and on the real server."""

from __future__ import annotations

import copy

import pytest
from apiserver_kit import refusal

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, text_at, value_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.definitions import install_definitions, small_definition

SCHEMA: JsonMap = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
                "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "either": {"x-kubernetes-int-or-string": True},
            },
        },
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    },
}
BOXES = "/apis/boxes.example/v2/namespaces/default/boxes"


@pytest.fixture(scope="module", autouse=True)
def boxes(control_plane: ControlPlane) -> None:
    definition = small_definition("boxes.example", "boxes", "Box", ["v1", "v2"], SCHEMA)
    install_definitions(control_plane.client(), [definition])


def box(name: str, **spec: JsonValue) -> JsonMap:
    return {"apiVersion": "boxes.example/v2", "kind": "Box", "metadata": {"name": name}, "spec": {"size": 1, **spec}}


def test_unknown_fields_go_and_defaults_come(admin: Client, unique: str) -> None:
    body = box(unique, unknown=1, open={"anything": [1]}, limits={"a": 1})
    body["extra"] = "gone"
    stored = admin.create(BOXES, body)
    assert stored["spec"] == {"size": 1, "colour": "red", "open": {"anything": [1]}, "limits": {"a": 1}}
    assert "extra" not in stored


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"size": 0}, "spec.size"),
        ({"size": "1"}, "spec.size"),
        ({"colour": "green"}, "spec.colour"),
        ({"code": "A"}, "spec.code"),
        ({"tags": ["a", "b", "c"]}, "spec.tags"),
        ({"limits": {"a": "b"}}, "spec.limits.a"),
        ({"either": True}, "spec.either"),
    ],
    ids=str,
)
def test_schema_refuses_at_the_field(admin: Client, unique: str, spec: JsonMap, field: str) -> None:
    refused = refusal(lambda: admin.create(BOXES, box(unique, **spec)))
    # Servers with CEL add, without a field, that rules were not evaluated on an object of a wrong type.
    assert (refused.code, [one for one in refused.fields if one != "<nil>"]) == (422, [field])


def test_status_is_written_apart(admin: Client, unique: str) -> None:
    body = box(unique)
    body["status"] = {"phase": "forged"}
    stored = admin.create(BOXES, body)
    assert "status" not in stored
    changed = copy.deepcopy(stored)
    changed["status"] = {"phase": "Full"}
    map_at(changed, "spec")["size"] = 2
    map_at(changed, "metadata")["labels"] = {"a": "b"}
    after_status = admin.replace(f"{BOXES}/{unique}/status", changed)
    assert (value_at(after_status, "spec", "size"), value_at(after_status, "status", "phase")) == (1, "Full")
    assert value_at(after_status, "metadata", "labels") is None
    changed["status"] = {"phase": "forged"}
    map_at(changed, "metadata")["resourceVersion"] = value_at(after_status, "metadata", "resourceVersion")
    after_spec = admin.replace(f"{BOXES}/{unique}", changed)
    assert (value_at(after_spec, "spec", "size"), value_at(after_spec, "status", "phase")) == (2, "Full")


def test_generation_counts_changes_of_the_spec(admin: Client, unique: str) -> None:
    admin.create(BOXES, box(unique))
    changes: list[tuple[str, JsonMap]] = [
        ("", {"metadata": {"labels": {"a": "b"}}}),
        ("/status", {"status": {"phase": "x"}}),
        ("", {"spec": {"size": 2}}),
    ]
    seen = [
        value_at(admin.patch(f"{BOXES}/{unique}{door}", patch), "metadata", "generation") for door, patch in changes
    ]
    assert seen == [1, 1, 2]


def test_every_served_version_shows_the_same_object(admin: Client, unique: str) -> None:
    stored = admin.create(BOXES, box(unique))
    old = admin.get(f"{BOXES.replace('v2', 'v1')}/{unique}")
    assert old == {**stored, "apiVersion": "boxes.example/v1"}
    listed = admin.list(BOXES.replace("v2", "v1"), fieldSelector=f"metadata.name={unique}")
    assert listed == [old]
    changed = admin.patch(f"{BOXES.replace('v2', 'v1')}/{unique}", {"spec": {"size": 3}})
    assert (text_at(changed, "apiVersion"), value_at(changed, "spec", "size")) == ("boxes.example/v1", 3)
    assert value_at(admin.get(f"{BOXES}/{unique}"), "spec", "size") == 3
    (event,) = admin.watch(BOXES.replace("v2", "v1"), fieldSelector=f"metadata.name={unique}")
    assert text_at(event, "object", "apiVersion") == "boxes.example/v1"
