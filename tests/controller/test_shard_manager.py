"""A shard is served after its ledgers are here, and given back after nothing of it is under way."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from management_kit import add_cluster, add_policy, cached, cluster_path, management_api
from polling import until

from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.changes import MANAGEMENT_SHARD, ChangeBus
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.shard_manager import ShardManager
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiError

KEY = ClusterKey("fleet/blue")
LEDGERS = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet/machineattestations"


def settings(identity: str) -> Settings:
    return Settings(identity=identity, shard_clusters=True, lease_duration=3.0, renew_deadline=2.0, retry_period=0.1)


async def leads() -> bool:
    return True


async def test_one_replica_takes_every_shard_and_gives_them_back_in_order() -> None:
    api, changes, metrics = management_api(), ChangeBus(), Metrics()
    add_cluster(api)
    add_policy(api)
    seen: list[tuple[str, str]] = []
    changes.subscribe_shards(
        acquired=lambda shard: seen.append(("acquired", shard)), released=lambda shard: seen.append(("released", shard))
    )

    async def stop(cluster: ClusterKey) -> None:
        seen.append(("stopped", cluster))

    async with cached(api, changes) as management:
        shards = ShardManager(
            settings("one"), api, management, metrics=metrics, changes=changes, may_act=lambda: True, still_leads=leads
        )
        changes.subscribe_clusters(shards.cluster_changed)
        shards.before_release(stop)

        async def serve() -> None:
            await asyncio.Event().wait()

        task = asyncio.create_task(shards.run(serve))
        await until(lambda: {shard for _, shard in seen} == {KEY, MANAGEMENT_SHARD}, seconds=20)
        assert shards.owns(KEY)
        assert shards.owns_management()
        assert shards.may_write()
        api.remove("/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet/nodeattestationpolicies/p")
        await until(lambda: ("released", KEY) in seen, seconds=20)
        assert not shards.owns(KEY)
        assert seen.index(("stopped", KEY)) < seen.index(("released", KEY))
        assert ("stopped", MANAGEMENT_SHARD) not in seen
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_change_of_one_cluster_or_its_secrets_looks_at_no_other() -> None:
    api, changes, metrics = management_api(), ChangeBus(), Metrics()
    for number in range(50):
        add_cluster(api, f"c{number}")
    policy = add_policy(api)
    async with cached(api, changes) as management:
        shards = ShardManager(
            settings("one"), api, management, metrics=metrics, changes=changes, may_act=lambda: True, still_leads=leads
        )
        everything = frozenset({MANAGEMENT_SHARD, *(ClusterKey(f"fleet/c{number}") for number in range(50))})
        assert shards.wanted() == everything
        known = shards.wanted()
        shards.cluster_changed(ClusterKey("fleet/c7"), None)  # its kubeconfig
        assert shards.wanted() is known
        changes.subscribe_clusters(shards.cluster_changed)
        api.remove(cluster_path("c7"))
        await until(lambda: shards.wanted() == everything - {ClusterKey("fleet/c7")})
        add_cluster(api, "c7")
        await until(lambda: shards.wanted() == everything)
        api.remove(policy)
        await until(lambda: shards.wanted() == frozenset({MANAGEMENT_SHARD}))
        add_policy(api)
        await until(lambda: shards.wanted() == everything)


@pytest.mark.parametrize("lag", [0, 9])
async def test_before_a_takeover_the_ledgers_are_compared_ever_more_rarely(lag: int) -> None:
    api, changes, waited = management_api(), ChangeBus(), list[float]()
    labels = {"cluster.x-k8s.io/cluster-name": "blue"}
    api.put(f"{LEDGERS}/a", {"metadata": {"labels": dict(labels)}, "spec": {}})
    live = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == lag:
            live.set()
        await asyncio.sleep(0)

    async def delayed(method: str, path: str) -> None:
        if lag and method == "WATCH" and "machineattestations" in path:
            await live.wait()

    api.on_call = delayed
    async with cached(api, changes, sleep=sleep) as management:
        api.put(f"{LEDGERS}/a", {"metadata": {"labels": dict(labels)}, "spec": {"newer": True}})
        await management.await_ledgers(KEY)
    assert len(waited) >= lag
    if lag:
        assert waited[0] < 0.3
        assert waited[5] > 5
        assert max(waited) <= 12.5


async def test_a_refused_comparison_is_no_takeover() -> None:
    api, changes = management_api(), ChangeBus()

    async def refused(method: str, path: str) -> None:
        if method == "LIST" and path == LEDGERS:
            raise ApiError(500, "InternalError", "broken")

    async with cached(api, changes) as management:
        api.on_call = refused
        with pytest.raises(ApiError):
            await management.await_ledgers(KEY)
