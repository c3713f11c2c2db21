"""Clusters whose watches recover together are audited in turn; one that recovers alone, at once. On virtual time."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from fake_api import FakeApi
from management_kit import add_policy, cached, cluster_path, management_api
from virtual import advance, now, run_virtually

from nodeattest_controller.controllers.auto_approval.controller import AutoApprovalController
from nodeattest_controller.controllers.auto_approval.recovery_pace import MAX_DELAY, PER_SECOND, RecoveryPace
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.changes import ChangeBus
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import Unreachable
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.periodic import ResyncConfig

RESYNC: Final = ResyncConfig(spread=0.0, period=3600.0, retry=3600.0, max_retry=3600.0)
"""Only a watch that recovers starts an audit soon."""
PARTITION: Final = 3.0
"""Seconds; short, so that watches come back together."""
CLOSE: Final = 2.0
"""Seconds to the audit of one cluster."""


class Fleet:
    """Clusters that one controller audits, behind one network."""

    def __init__(self, size: int) -> None:
        self.api = management_api()
        self.cut_off = True
        self.audits: dict[str, float] = {}
        """When the first audit after the partition began, by cluster."""
        self.followed: dict[str, float] = {}
        """When the first watch after the partition began."""
        self.workloads = {f"fleet/c{number}": self._workload(f"fleet/c{number}") for number in range(size)}
        add_policy(self.api)
        for key in self.workloads:
            self.api.put(cluster_path(key.partition("/")[2]), _cluster())

    def owns(self, cluster: ClusterKey) -> bool:
        return cluster in self.workloads

    def leads(self) -> bool:
        return True

    def _workload(self, key: str) -> FakeApi:
        workload = FakeApi(f"https://{key}.example")

        async def on_call(method: str, path: str) -> None:
            if self.cut_off:
                raise Unreachable("no route")
            if method == "WATCH":
                self.followed.setdefault(key, now())
            if method == "GET" and "cluster-info" in path:  # what each audit asks once
                self.audits.setdefault(key, now())

        workload.on_call = on_call
        return workload

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the controller in all clusters."""
        async with cached(self.api, ChangeBus()) as management:
            events = EventRecorder(self.api, component="test", instance="test-1", now=_utc)
            controller = AutoApprovalController(
                management,
                guard=ClusterGuard(management, self),
                events=events,
                metrics=Metrics(),
                now=_utc,
                resync=RESYNC,
                clock=now,
            )
            runners = [controller.for_cluster(ClusterKey(key), api) for key, api in self.workloads.items()]
            tasks = [asyncio.create_task(runner.run()) for runner in runners]
            try:
                yield
                assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await events.drain()


def _cluster() -> JsonObject:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"labels": {"env": "prod"}},
        "spec": {},
        "status": {"initialization": {"controlPlaneInitialized": True}},
    }


def _utc() -> datetime:
    return datetime.now(UTC)


async def _audited_after_a_partition(fleet: Fleet) -> list[float]:
    """Return when each cluster's audit began, in order."""
    async with fleet.running():
        await advance(PARTITION)
        fleet.cut_off = False
        await advance(2 * MAX_DELAY)
    assert fleet.audits.keys() == fleet.workloads.keys()
    return sorted(fleet.audits.values())


def test_clusters_that_recover_together_are_audited_in_turn() -> None:
    size = 120
    begun = run_virtually(_audited_after_a_partition(Fleet(size)))
    most = max(bisect_left(begun, start + 1.0) - number for number, start in enumerate(begun))
    assert most <= PER_SECOND + 1
    assert begun[-1] - begun[0] >= (size - 1) / PER_SECOND - 1.0
    assert begun[-1] - PARTITION <= MAX_DELAY


def test_a_cluster_that_recovers_alone_is_audited_at_once() -> None:
    fleet = Fleet(1)
    [begun] = run_virtually(_audited_after_a_partition(fleet))
    assert begun - fleet.followed["fleet/c0"] <= CLOSE


def test_however_many_recover_none_waits_longer_than_the_longest_time() -> None:
    pace = RecoveryPace(clock=lambda: 0.0, random=lambda: 0.5)
    waits = [pace.delay() for _ in range(int(2 * PER_SECOND * MAX_DELAY))]
    assert waits[0] == 0.0
    assert max(waits) <= MAX_DELAY
    assert waits[-1] == 0.5 * MAX_DELAY
