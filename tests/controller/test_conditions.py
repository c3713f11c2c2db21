"""Conditions of ours on objects of others: in both contracts, beside the others', written when something changed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from nodeattest_controller.runtime.conditions import (
    ATTEMPTS,
    MAX_MESSAGE,
    Condition,
    ConditionStatus,
    Severity,
    remove_condition,
    set_condition,
    with_condition,
    without_condition,
)
from nodeattest_kube.client import ApiClient, Conflict
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 4, 0, 0, tzinfo=UTC)
STAMP, LATER_STAMP = "2026-01-02T03:04:05Z", "2026-01-02T04:00:00Z"
ATTESTED = Condition("NodeAttested", ConditionStatus.TRUE, "Attested", "by tpm")
REFUSED = Condition("NodeAttested", ConditionStatus.FALSE, "EvidenceInvalid", "the quote is stale", Severity.ERROR)
OTHERS: JsonMap = {"type": "InfrastructureReady", "status": "True", "reason": "Ready", "message": "",
                   "lastTransitionTime": "2025-01-01T00:00:00Z", "unknown": "field"}  # fmt: skip
MACHINES = "/apis/cluster.x-k8s.io/{}/namespaces/default/machines"


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


def applied(obj: JsonMap, patch: JsonObject | None) -> JsonMap:
    assert patch is not None
    return {**obj, "status": {**map_at(obj, "status"), **map_at(patch, "status")}}


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


def test_a_v1beta1_object_that_has_both_kinds_gets_both() -> None:
    patch = with_condition(machine("v1beta1", v1beta2={"conditions": [OTHERS]}), REFUSED, NOW)
    assert patched(patch, "conditions")[0]["severity"] == "Error"
    new = patched(patch, "v1beta2", "conditions")
    assert new[0] == OTHERS
    assert new[1]["observedGeneration"] == 3


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_others_conditions_stay_word_for_word(version: str) -> None:
    obj = machine(version, conditions=[OTHERS, {"type": "Z", "status": "Unknown"}])
    assert patched(with_condition(obj, ATTESTED, NOW), "conditions")[:2] == [OTHERS, {"type": "Z", "status": "Unknown"}]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
@pytest.mark.parametrize("condition", [ATTESTED, REFUSED])
def test_what_says_the_same_already_is_not_written(version: str, condition: Condition) -> None:
    obj = machine(version, conditions=[OTHERS], v1beta2={"conditions": []})
    once = applied(obj, with_condition(obj, condition, NOW))
    assert with_condition(once, condition, LATER) is None


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_new_reason_or_message_does_not_move_the_time(version: str) -> None:
    reworded = Condition("NodeAttested", ConditionStatus.FALSE, "Another", "other words", Severity.INFO)
    once = applied(machine(version), with_condition(machine(version), REFUSED, NOW))
    assert patched(with_condition(once, reworded, LATER), "conditions")[0]["lastTransitionTime"] == STAMP


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_new_status_moves_the_time(version: str) -> None:
    once = applied(machine(version), with_condition(machine(version), REFUSED, NOW))
    assert patched(with_condition(once, ATTESTED, LATER), "conditions")[0]["lastTransitionTime"] == LATER_STAMP


def test_a_message_without_end_is_cut() -> None:
    long = Condition("NodeAttested", ConditionStatus.FALSE, "EvidenceInvalid", "x" * 100_000)
    message = patched(with_condition(machine("v1beta1"), long, NOW), "conditions")[0]["message"]
    assert message == "x" * (MAX_MESSAGE - 1) + "…"


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_what_a_server_said_forges_no_line_of_a_message(version: str) -> None:
    refused = Condition("NodeAttested", ConditionStatus.FALSE, "EvidenceInvalid", "no\r\nok\x1b[2J\u202e")
    assert patched(with_condition(machine(version), refused, NOW), "conditions")[0]["message"] == "no  ok [2J "


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_condition_is_taken_away_alone(version: str) -> None:
    obj = machine(version, conditions=[OTHERS])
    once = applied(obj, with_condition(obj, ATTESTED, NOW))
    assert patched(without_condition(once, "NodeAttested"), "conditions") == [OTHERS]
    assert without_condition(obj, "NodeAttested") is None


# On an API server


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with start_sandbox(tmp_path_factory.mktemp("conditions"), name="management") as running:
        install_cluster_api(running.client())
        yield running


def create(plane: ControlPlane, name: str, version: str = "v1beta2") -> tuple[str, JsonObject]:
    body: JsonMap = {
        "apiVersion": f"cluster.x-k8s.io/{version}",
        "kind": "Machine",
        "metadata": {"name": name},
        "spec": {
            "clusterName": "c",
            "bootstrap": {"dataSecretName": "d"},
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevMachine", "name": "i"},
        },
    }
    path = MACHINES.format(version)
    return f"{path}/{name}", plane.client().create(path, body)


def stored(plane: ControlPlane, path: str) -> list[JsonMap]:
    return list(maps_at(plane.client().get(path), "status", "conditions"))


def codes(plane: ControlPlane, name: str) -> list[int]:
    return [one.code for one in plane.requests() if one.verb == "patch" and one.name == name and one.subresource]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_who_writes_something_else_of_the_object_meanwhile_is_no_conflict(
    plane: ControlPlane, version: str
) -> None:
    name = f"elsewhere-{version}"
    path, made = create(plane, name, version)
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        assert await set_condition(client, path, made, ATTESTED, lambda: NOW)
        stale = await client.get(path)
        plane.client().patch(path, {"metadata": {"annotations": {"others": "word"}}})
        plane.client().patch(f"{path}/status", {"status": {"conditions": [*stored(plane, path), OTHERS]}})
        assert await set_condition(client, path, stale, REFUSED, lambda: LATER)
    assert [entry["status"] for entry in stored(plane, path)] == ["False", "True"]
    assert 409 not in codes(plane, name)


async def test_an_object_that_is_another_by_now_is_not_told(plane: ControlPlane) -> None:
    path, stale = create(plane, "another")
    plane.client().delete(path)
    create(plane, "another")
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        assert not await set_condition(client, path, stale, ATTESTED, lambda: NOW)
    assert stored(plane, path) == []


async def test_who_is_always_too_late_gives_up(plane: ControlPlane) -> None:
    path, stale = create(plane, "busy")
    writes = 0

    def clock() -> datetime:  # asked between each read and its write, where another writes
        nonlocal writes
        writes += 1
        plane.client().patch(path, {"metadata": {"annotations": {"n": str(writes)}}})
        return NOW

    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        with pytest.raises(Conflict):
            await set_condition(client, path, stale, ATTESTED, clock)
    assert writes == 1 + ATTEMPTS  # the condition alone, then the whole list


async def test_a_condition_is_removed_where_it_stands(plane: ControlPlane) -> None:
    path, made = create(plane, "removed")
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        await set_condition(client, path, made, ATTESTED, lambda: NOW)
        assert await remove_condition(client, path, await client.get(path), "NodeAttested")
        assert not await remove_condition(client, path, await client.get(path), "NodeAttested")
    assert stored(plane, path) == []
