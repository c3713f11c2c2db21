"""A policy's spec wakes the clusters beside it, its status does not."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import cast

from fake_api import FakeApi
from management_kit import add_cluster, add_policy, cached, management_api
from polling import until

from nodeattest_controller.controllers.policy_status.reconciler import PolicyStatusReconciler
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.changes import ChangeBus
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.jsontypes import JsonObject, dig


class Owner:
    """Whether this replica leads."""

    def __init__(self, *, owns: bool) -> None:
        self.is_ours = owns
        self.asked = 0

    def owns(self, cluster: ClusterKey) -> bool:
        return bool(cluster)

    def leads(self) -> bool:
        self.asked += 1
        return self.is_ours


def now() -> datetime:
    return datetime(2026, 1, 2, tzinfo=UTC)


def valid(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("nodeattest_policies", {"reason": "Valid"})


def status_of(api: FakeApi, path: str) -> object:
    return dig(api.objects[path], "status", "clusters")


async def test_a_status_wakes_no_cluster_and_a_spec_wakes_all_beside_it() -> None:
    api, changes = management_api(), ChangeBus()
    woken: list[str] = []
    namespaces: list[str] = []
    add_cluster(api, "blue")
    add_cluster(api, "green")
    path = add_policy(api)
    async with cached(api, changes):
        changes.subscribe_clusters(lambda cluster, _keys: woken.append(cluster))
        changes.subscribe_policies(namespaces.append)
        await api.merge_patch(f"{path}/status", {"status": {"clusters": 2}})
        await until(lambda: namespaces == ["fleet"])
        assert not woken
        add_policy(api, enforcement="Audit")
        await until(lambda: len(namespaces) == 2)
        assert sorted(woken) == ["fleet/blue", "fleet/green"]
        woken.clear()
        api.remove(path)
        await until(lambda: len(namespaces) == 3)
        assert sorted(woken) == ["fleet/blue", "fleet/green"]


async def test_a_write_that_another_was_faster_with_is_made_again_from_what_they_wrote() -> None:
    api, changes, metrics = management_api(), ChangeBus(), Metrics()
    add_cluster(api)
    path = add_policy(api)
    raced = asyncio.Event()

    async def faster(method: str, called: str) -> None:
        if method == "PATCH" and called == f"{path}/status" and not raced.is_set():
            raced.set()
            api.put(path, {**api.objects[path], "status": cast("JsonObject", {"clusters": 7})})

    async with cached(api, changes) as management:
        api.on_call = faster
        events = EventRecorder(api, component="test", instance="one", now=now)
        reconciler = PolicyStatusReconciler(
            management, ownership=Owner(owns=True), events=events, metrics=metrics, now=now
        )
        changes.subscribe_policies(reconciler.changed)
        task = asyncio.create_task(reconciler.run())
        changes.policies_changed("fleet")
        await until(lambda: status_of(api, path) == 1)
        assert raced.is_set()
        assert api.count("PATCH", "/status") == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
