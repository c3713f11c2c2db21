"""Conditions of ours on objects of others: in both contracts, beside the others', written when something changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime

import pytest
from fake_api import FakeApi
from management_kit import add_cluster, cached, deps_of, management_api, tasks
from polling import until

from nodeattest_controller.controllers.bootstrap_signer import REASON, REMEDY, TokenPairRunner
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_controller import PERIOD
from nodeattest_controller.runtime.conditions import (
    Condition,
    ConditionStatus,
    Severity,
    set_condition,
    with_condition,
)
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_discovery.controllers.bootstrap_signer import TokenController
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, Unreachable
from nodeattest_kube.events import CLUSTER_BURST, NAMESPACE_BURST, SOURCE_BURST, EventRecorder, ObjectRef
from nodeattest_parsing.objects import items, text
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


# Events: one requester's flood leaves room for another's


def ref(name: str) -> ObjectRef:
    return ObjectRef(
        api_version="cluster.x-k8s.io/v1beta1", kind="Machine", namespace="default", name=name, uid=f"uid-{name}"
    )


async def test_a_flood_of_events_leaves_room_for_other_requesters_and_clusters() -> None:
    api = FakeApi()
    recorder = EventRecorder(
        api, component="test", instance="here", now=lambda: datetime(2026, 1, 1, tzinfo=UTC), clock=lambda: 1000.0
    )
    for number in range(500):
        recorder.record(ref(f"many-{number}"), "Warning", "MachineNotFound", "junk", source=("fleet/a", "thief"))
    recorder.record(ref("honest-1"), "Warning", "NodeNameMismatch", "a mistake", source=("fleet/a", "node"))
    for number in range(NAMESPACE_BURST + 100):
        source = ("fleet/bad", f"invented-{number}")
        recorder.record(ref(f"bad-{number}"), "Warning", "MachineNotFound", "junk", source=source)
    recorder.record(ref("honest-2"), "Warning", "NodeNameMismatch", "a mistake", source=("fleet/good", "node"))
    await recorder.drain(20)
    found = Counter(text(one, "involvedObject", "name").partition("-")[0] for one in api.objects.values())
    assert found == {"many": SOURCE_BURST, "honest": 2, "bad": CLUSTER_BURST}


# What operators hear of the token controllers

NO_RIGHT = Forbidden(403, "Forbidden", "may not update configmaps")


async def test_failures_are_counted_by_kind_and_a_missing_right_is_told_on_the_cluster_once_in_ten_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, workload, metrics, seconds = management_api(), FakeApi(), Metrics(), [0.0]
    add_cluster(api)

    async def forbid(_method: str, _path: str) -> None:
        raise NO_RIGHT

    workload.on_call = forbid
    async with cached(api) as management:
        deps = deps_of(management, metrics=metrics, clock=lambda: seconds[0])
        runner = TokenPairRunner(deps, frozenset(TokenController), ClusterKey("fleet/blue"), workload)
        outcomes: dict[str, ApiError] = {
            "conflict": Conflict(409, "Conflict", "changed"),
            "forbidden": NO_RIGHT,
            "unreachable": Unreachable("no route"),
            "refused": ApiError(500, "InternalError", "sorry"),
        }
        for outcome, error in outcomes.items():
            runner.failed(TokenController.SIGNER, error, 1.0)
            labels = {"controller": "bootstrap-signer", "outcome": outcome}
            assert metrics.registry.get_sample_value("nodeattest_token_writes_total", labels) == 1
        async with tasks(runner.run()):
            await until(lambda: runner.last_error is not None)
        for _ in range(3):
            runner.failed(TokenController.SIGNER, NO_RIGHT, 1.0)
            runner.report_missing_right()
        await until(lambda: len(api.events()) == 2)
        seconds[0] += PERIOD
        runner.report_missing_right()
        await until(lambda: len(api.events()) == 3)
        await asyncio.sleep(0)
    assert {*api.events()} == {REASON}
    assert all("may not update configmaps" in said and REMEDY in said for said in api.events("message"))
    assert REMEDY in str([record.__dict__ for record in caplog.records])
