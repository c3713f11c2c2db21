"""Conditions of ours on objects of others: in both contracts, beside the others', written when something changed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from fake_api import FakeApi

from nodeattest_controller.runtime.conditions import (
    Condition,
    ConditionStatus,
    Severity,
    set_condition,
    with_condition,
)
from nodeattest_parsing.objects import items
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 4, 0, 0, tzinfo=UTC)
STAMP = "2026-01-02T03:04:05Z"
ATTESTED = Condition("NodeAttested", ConditionStatus.TRUE, "Attested", "by tpm")
REFUSED = Condition("NodeAttested", ConditionStatus.FALSE, "EvidenceInvalid", "the quote is stale", Severity.ERROR)
OTHERS: JsonMap = {"type": "InfrastructureReady", "status": "True", "reason": "Ready", "message": "",
                   "lastTransitionTime": "2025-01-01T00:00:00Z", "unknown": "field"}  # fmt: skip


def machine(version: str, **status: JsonValue) -> JsonMap:
    return {
        "apiVersion": f"cluster.x-k8s.io/{version}",
        "kind": "Machine",
        "metadata": {"name": "m", "uid": "u", "resourceVersion": "7", "generation": 3},
        "status": status,
    }


def patched(patch: JsonObject | None, *path: str) -> list[JsonObject]:
    assert patch is not None
    return list(maps_at(map_at(patch, "status"), *path))


def test_a_v1beta2_condition_has_a_generation_and_no_severity() -> None:
    patch = with_condition(machine("v1beta2"), REFUSED, NOW)
    assert patched(patch, "conditions") == [
        {"type": "NodeAttested", "status": "False", "reason": "EvidenceInvalid", "message": "the quote is stale",
         "observedGeneration": 3, "lastTransitionTime": STAMP}
    ]  # fmt: skip


def test_a_v1beta1_condition_has_a_severity_where_it_is_false_and_no_generation() -> None:
    refused = patched(with_condition(machine("v1beta1"), REFUSED, NOW), "conditions")
    assert refused == [
        {"type": "NodeAttested", "status": "False", "reason": "EvidenceInvalid", "message": "the quote is stale",
         "severity": "Error", "lastTransitionTime": STAMP}
    ]  # fmt: skip
    assert "severity" not in patched(with_condition(machine("v1beta1"), ATTESTED, NOW), "conditions")[0]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_what_others_write_of_the_object_meanwhile_stays(version: str) -> None:
    api, path = FakeApi(), f"/apis/cluster.x-k8s.io/{version}/namespaces/default/machines/m"
    made = api.put(path, machine(version, conditions=[OTHERS]))
    assert await set_condition(api, path, made, ATTESTED, lambda: NOW)
    stale = await api.get(path)
    theirs: JsonMap = {**OTHERS, "reason": "Changed"}
    conditions: JsonMap = {"conditions": [theirs, *items(stale, "status", "conditions")[1:]]}
    api.put(path, {**stale, "spec": {"others": "word"}, "status": conditions})
    assert await set_condition(api, path, stale, REFUSED, lambda: LATER)
    stored = items(api.objects[path], "status", "conditions")
    assert stored[0] == theirs
    assert [entry["status"] for entry in stored] == ["True", "False"]
    assert api.objects[path]["spec"] == {"others": "word"}


async def test_another_object_of_the_name_is_told_nothing() -> None:
    api, path = FakeApi(), "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machines/m"
    stale = api.put(path, machine("v1beta2", conditions=[OTHERS]))
    api.remove(path)
    api.put(path, {**machine("v1beta2", conditions=[OTHERS]), "metadata": {"name": "m", "uid": "another"}})
    assert not await set_condition(api, path, stale, REFUSED, lambda: NOW)
    assert items(api.objects[path], "status", "conditions") == [OTHERS]
