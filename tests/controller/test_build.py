"""The whole manager in the test's process, on API servers in memory: it connects, acts, and closes what it opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from fake_api import FakeApi
from management_kit import add_cluster, add_policy, management_api, until

from nodeattest_controller.build import build_manager
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.manager import Manager
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import dig

ALL = ("*", "standing", "hardening", "bootstrap-token", "bootstrap-signer", "token-cleaner")
SECRET = "/api/v1/namespaces/nodeattest-system/secrets/node-attestation-challenge-keys"


class World:
    """A management cluster with one Cluster, and its workload cluster."""

    def __init__(self) -> None:
        self.management, self.workload = management_api(), FakeApi("https://workload.example")
        add_cluster(self.management)
        self.policy = add_policy(self.management)
        self.metrics = Metrics()
        self.acts = True

    def connect(self, kubeconfig: bytes) -> ApiClient:
        assert kubeconfig == b"good"
        return self.workload

    def build(self, settings: Settings, leases: ApiClient | None = None) -> Manager:
        return build_manager(
            settings,
            self.management,
            self.metrics,
            connect=self.connect,
            may_act=lambda: self.acts,
            leases=leases,
            signers={},
        )

    @asynccontextmanager
    async def running(self, settings: Settings, leases: ApiClient | None = None) -> AsyncGenerator[Manager]:
        manager = self.build(settings, leases)
        task = asyncio.create_task(manager.run(settings.identity))
        try:
            yield manager
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await manager.aclose()

    @property
    def connected(self) -> float | None:
        return self.metrics.registry.get_sample_value("nodeattest_cluster_connected", {"cluster": "fleet/blue"})


async def test_the_leader_connects_every_cluster_and_writes_the_status_of_policies() -> None:
    world = World()
    async with world.running(Settings(identity="one", controllers=ALL)) as manager:
        await until(lambda: world.workload.count("WATCH", "certificatesigningrequests") >= 1)
        await until(lambda: SECRET in world.management.objects)
        await until(lambda: dig(world.management.objects[world.policy], "status", "clusters") == 1)
        assert manager.unhealthy() is None
        assert not world.workload.closed
    assert world.workload.closed
    assert world.connected is None


async def test_a_replica_that_shares_clusters_connects_what_it_owns() -> None:
    world = World()
    settings = Settings(identity="one", shard_clusters=True, lease_duration=3.0, renew_deadline=2.0, retry_period=0.1)
    async with world.running(settings, leases=world.management) as manager:
        await until(lambda: world.workload.count("WATCH", "certificatesigningrequests") >= 1, 20)
        await until(lambda: dig(world.management.objects[world.policy], "status", "clusters") == 1)
        assert manager.unhealthy() is None


async def test_a_replica_that_may_not_act_any_more_sends_nothing() -> None:
    world = World()
    async with world.running(Settings(identity="one")):
        await until(lambda: SECRET in world.management.objects)
        world.acts = False
        before = len(world.management.calls)
        add_policy(world.management, enforcement="Audit")
        await asyncio.sleep(1.5)
        assert all(method != "PATCH" for method, _ in world.management.calls[before:])


async def test_a_bug_in_one_controller_of_a_cluster_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    async def bug(method: str, path: str) -> None:
        if method == "LIST" and path.endswith("/secrets"):  # what the token controllers read, and nobody else
            raise TypeError("no such attribute")

    world.workload.on_call = bug
    async with world.running(Settings(identity="one", controllers=ALL)):
        await until(lambda: "a bug ended a controller" in caplog.text)
        await until(lambda: world.workload.count("WATCH", "certificatesigningrequests") >= 1)
        await until(lambda: dig(world.management.objects[world.policy], "status", "clusters") == 1)
        assert not world.workload.closed
