"""Connections come and go with Clusters, policies, kubeconfigs and ownership; a bug in one controller closes none."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from fake_api import FakeApi
from management_kit import (
    POLICIES,
    ScriptedController,
    add_cluster,
    add_policy,
    cached,
    cluster_path,
    deps_of,
    management_api,
    tasks,
)
from polling import others_run, until
from virtual import advance, now, run_virtually

from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_controller import ClusterController, SupervisedRunner, supervise
from nodeattest_controller.runtime.cluster_manager import ACCEPTED, REFUSED, ClusterManager
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, KubeconfigError
from nodeattest_kube.periodic import BackoffPolicy, PeriodicReconciler, ResyncConfig
from nodeattest_parsing.objects import condition, items, mapping, text

KEY = ClusterKey("fleet/blue")
AT_ONCE = BackoffPolicy(initial=0.001, cap=0.002)


class World:
    """A manager over a management cluster with one Cluster that a policy selects."""

    def __init__(self) -> None:
        self.api = management_api()
        add_cluster(self.api)
        add_policy(self.api)
        self.leads = True
        self.metrics = Metrics()
        self.first, self.second = ScriptedController(), ScriptedController()
        self.made: list[FakeApi] = []
        self.parsed: list[bytes] = []
        self.threads: set[int] = set()

    def connect(self, kubeconfig: bytes) -> ApiClient:
        self.parsed.append(kubeconfig)
        self.threads.add(threading.get_ident())
        if kubeconfig != b"good" and not kubeconfig.startswith(b"another"):
            raise KubeconfigError(expected="a kubeconfig", got="none", remedy="write one")
        self.made.append(FakeApi())
        return self.made[-1]

    @property
    def connected(self) -> float | None:
        return self.metrics.registry.get_sample_value("nodeattest_cluster_connected", {"cluster": KEY})

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[ClusterManager]:
        async with cached(self.api) as management:
            controllers = [ClusterController("scripted", one.for_cluster) for one in (self.first, self.second)]
            deps = deps_of(management, metrics=self.metrics)
            manager = ClusterManager(
                replace(deps, guard=ClusterGuard(management, lambda: self.leads, controller="c")),
                controllers,
                connect=self.connect,
                restart=AT_ONCE,
                metrics_period=0.01,
                clusters_per_namespace=10,
            )
            self.changes = management.changes
            self.changes.subscribe_clusters(manager.changed)
            self.changes.cluster_changed(KEY, None)
            async with tasks(manager.run()):
                yield manager


async def test_another_kubeconfig_a_deleted_policy_and_a_deleted_cluster_end_the_connection() -> None:
    world = World()
    async with world.running():
        await until(lambda: world.first.running == 1)
        add_cluster(world.api, kubeconfig=b"another")
        await until(lambda: len(world.made) == 2 and world.first.running == 1)
        assert world.made[0].closed
        world.api.remove(f"{POLICIES}/p")
        await until(lambda: world.made[1].closed)
        add_policy(world.api)
        await until(lambda: len(world.made) == 3 and world.first.running == 1)
        world.api.remove(cluster_path())
        await until(lambda: world.made[2].closed)
        assert world.first.running == 0


async def test_a_replica_that_leads_no_longer_sends_nothing_and_disconnects() -> None:
    world = World()
    async with world.running():
        await until(lambda: world.first.running == 1)
        world.leads = False
        assert not world.made[0].may_send()
        world.changes.cluster_changed(KEY, None)
        await until(lambda: world.made[0].closed)
        assert world.first.running == 0


async def test_a_kubeconfig_that_cannot_be_used_is_parsed_once_and_never_in_the_event_loop() -> None:
    world = World()
    add_cluster(world.api, kubeconfig=b"bad")
    async with world.running():
        await until(lambda: world.connected == 0)
        for _ in range(10):
            world.changes.cluster_changed(KEY, None)
            await others_run(5)
        assert world.parsed == [b"bad"]
        add_cluster(world.api, kubeconfig=b"bad, and another")
        await until(lambda: len(world.parsed) == 2)
        add_cluster(world.api)
        await until(lambda: world.connected == 1)
        add_cluster(world.api, kubeconfig=b"bad")
        await until(lambda: world.connected == 0)
    assert world.parsed == [b"bad", b"bad, and another", b"good", b"bad"]
    assert threading.get_ident() not in world.threads


async def test_a_refused_kubeconfig_is_a_condition_of_its_cluster_until_it_is_not_refused() -> None:
    world = World()

    def said() -> tuple[str, str]:
        found = condition(items(world.api.objects[cluster_path()], "status", "conditions"), ACCEPTED) or {}
        return text(dict(found), "reason"), text(dict(found), "message")

    add_cluster(world.api, kubeconfig=b"bad")
    async with world.running():
        await until(lambda: said() == (REFUSED, "kubeconfig: expected a kubeconfig, got none; write one"))
        add_cluster(world.api)
        await until(lambda: said() == ("", "") and len(world.made) == 1)
        world.made[0].refuses = "got 127.0.0.1: correct it"
        await until(lambda: said() == (REFUSED, "got 127.0.0.1: correct it"))
        world.made[0].refuses = ""
        await until(lambda: said() == ("", ""))
    events = [each for path, each in world.api.objects.items() if "/events/" in path]
    assert [text(each, "reason") for each in events] == [REFUSED] * 2


async def test_no_cache_keeps_who_wrote_which_field() -> None:
    api = management_api()
    add_cluster(api)
    cluster = api.objects[cluster_path()]
    api.put(cluster_path(), {**cluster, "metadata": {**mapping(cluster, "metadata"), "managedFields": [{"a": "b"}]}})
    async with cached(api) as management:
        assert "managedFields" not in mapping(management.cluster(KEY), "metadata")


# A bug in one controller restarts that controller, and touches no other


async def test_a_controller_with_a_bug_starts_anew_and_the_log_names_it(caplog: pytest.LogCaptureFixture) -> None:
    controller = ScriptedController(bugs=3)
    with caplog.at_level(logging.ERROR):
        runner = SupervisedRunner(
            ClusterController("scripted", controller.for_cluster), KEY, FakeApi(), backoff=AT_ONCE
        )
        assert not runner.is_healthy
        await until(lambda: controller.running)
    assert controller.made == 4
    assert runner.is_healthy
    assert len(caplog.records) == 3
    assert all(record.exc_info is not None for record in caplog.records)
    await runner.close()


async def test_closing_ends_a_controller_for_good_whatever_it_dies_of(caplog: pytest.LogCaptureFixture) -> None:
    controller = ScriptedController()
    scripted = ClusterController("scripted", controller.for_cluster)
    runner = SupervisedRunner(scripted, KEY, FakeApi(), backoff=AT_ONCE)
    await until(lambda: controller.running)
    await runner.close()
    await others_run()
    assert controller.made == 1

    async def dies_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise TypeError("while it was closed")

    task = asyncio.create_task(supervise("other", dies_at_its_end, backoff=AT_ONCE))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 60)
    assert caplog.records == []


# When a controller looks: soon after a change, ever later after failures, and never more than a tenth of the time


BROKEN = ApiError(500, "InternalError", "broken")
QUICK = ResyncConfig(spread=0, period=30, min_interval=0.001, retry=0.02, max_retry=0.08)


class Task(PeriodicReconciler):
    """A periodic task that fails as a script says, and notes when it began."""

    def __init__(self, *script: ApiError | None, every: ApiError | None = None) -> None:
        self.script, self.every = list(script), every
        self.runs: list[float] = []
        self.failures: list[tuple[int, float]] = []
        super().__init__(QUICK, clock=now, random=lambda: 0.5)

    async def reconcile(self) -> float | None:
        self.runs.append(now())
        error = self.script.pop(0) if self.script else self.every
        if error is not None:
            raise error
        return None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        self.failures.append((failures, delay))
        if error.retry_after is not None:
            self.changed()


def look_for(looks: PeriodicReconciler, seconds: float) -> None:
    """Let it look for so many seconds of virtual time."""

    async def main() -> None:
        task = asyncio.create_task(looks.run())
        await advance(seconds)
        task.cancel()

    run_virtually(main())


def test_a_server_that_asks_to_be_left_alone_is_although_something_changed() -> None:
    busy = Task(every=ApiError(429, "TooManyRequests", "busy", retry_after=40.0))
    look_for(busy, 100.0)
    assert busy.runs == [0.0, 40.0, 80.0]


def test_failures_double_the_wait_up_to_the_longest_and_a_success_forgets_them() -> None:
    task = Task(BROKEN, BROKEN, BROKEN, BROKEN, None, BROKEN)
    look_for(task, 100.0)
    assert task.failures == [(1, 0.02), (2, 0.04), (3, 0.08), (4, 0.08), (1, 0.02)]


@pytest.mark.parametrize(("takes", "most"), [(0.1, 61), (1.0, 13), (3.0, 10), (120.0, 1)])
def test_in_ten_minutes_of_changes_it_looks_less_often_the_longer_it_takes(takes: float, most: int) -> None:
    looks = 0

    class Slow(PeriodicReconciler):
        async def reconcile(self) -> float | None:
            nonlocal looks
            looks += 1
            await advance(takes)
            self.changed()
            return None

        async def failed(self, error: ApiError, failures: int, delay: float) -> None:
            raise AssertionError(error, failures, delay)

    look_for(Slow(ResyncConfig(spread=0, share=50), clock=now, random=lambda: 0.5), 600)
    assert looks in {most - 1, most}
