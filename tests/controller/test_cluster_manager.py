"""Connections come and go with Clusters, policies, kubeconfigs and ownership; a bug in one controller closes none."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

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

from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_controller import ClusterController
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_controller.runtime.cluster_manager import ACCEPTED, REFUSED, ClusterManager
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import KubeconfigError
from nodeattest_kube.periodic import BackoffPolicy
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
                log=ClusterLog(),
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
