"""A policy's spec wakes the clusters beside it, its status does not; policies count where they are owned."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import cast

from fake_api import FakeApi
from management_kit import add_cluster, add_policy, cached, management_api
from polling import until

from nodeattest_controller.controllers.policy_status.reconciler import PolicyStatusReconciler
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.changes import MANAGEMENT_SHARD, ChangeBus
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.jsontypes import JsonObject, dig


class Owner:
    """Whether the management shard is this replica's."""

    def __init__(self, *, owns: bool) -> None:
        self.is_ours = owns
        self.asked = 0

    def owns(self, cluster: ClusterKey) -> bool:
        return bool(cluster)

    def owns_management(self) -> bool:
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


async def test_a_replica_that_lost_the_management_shard_counts_no_policies_until_it_has_it_again() -> None:
    api, changes, metrics, owner = management_api(), ChangeBus(), Metrics(), Owner(owns=True)
    add_cluster(api)
    path = add_policy(api)
    events = EventRecorder(api, component="test", instance="one", now=now)
    async with cached(api, changes) as management:
        reconciler = PolicyStatusReconciler(management, ownership=owner, events=events, metrics=metrics, now=now)
        changes.subscribe_policies(reconciler.changed)
        changes.subscribe_shards(acquired=reconciler.shard_moved, released=reconciler.shard_moved)
        task = asyncio.create_task(reconciler.run())
        changes.policies_changed("fleet")
        await until(lambda: valid(metrics) == 1 and status_of(api, path) == 1)
        owner.is_ours = False
        changes.shard_released(MANAGEMENT_SHARD)
        assert valid(metrics) == 0
        add_cluster(api, "green")
        asked = owner.asked
        changes.policies_changed("fleet")
        await until(lambda: owner.asked > asked)
        assert (valid(metrics), status_of(api, path)) == (0, 1)  # another replica's to write
        owner.is_ours = True
        changes.shard_acquired(MANAGEMENT_SHARD)
        await until(lambda: valid(metrics) == 1 and status_of(api, path) == 2)
        changes.shard_released("fleet/blue")
        assert valid(metrics) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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
