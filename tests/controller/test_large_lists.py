"""Lists without end in one tenant's objects: what they cost others is bounded, and their own cluster is told."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain, product
from typing import Any

import pytest
from counted_calls import calls
from fake_api import FakeApi
from management_kit import CAPI, add_cluster, add_policy, cached, management_api, tasks
from polling import until

from nodeattest_controller.model.machine_view import MAX_ADDRESSES, MAX_INSTANCES, pool_view, view_of_machine
from nodeattest_controller.model.policy import parse_attestation_policy
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_controller.runtime.informers import InformerSet, bounded, without_managed_fields
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.store import MemoryBudget, MemoryPool, object_size
from nodeattest_parsing.objects import dig, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied

BLUE = ClusterKey("fleet/blue")
MANY = 100_000
OWNER: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "MachinePool", "name": "p0"}


def pool(count: int, name: str = "p", *, cluster: str = "blue", prefix: str = "x://") -> JsonObject:
    listed: list[JsonValue] = [f"{prefix}{number}" for number in range(count)]
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "MachinePool",
        "metadata": {"name": name, "namespace": "fleet", "uid": f"uid-{name}"},
        "spec": {"clusterName": cluster, "providerIDList": listed},
        "status": {"bootstrapReady": True, "nodeRefs": [{"name": each} for each in listed]},
    }


def machine(name: str = "m", *, addresses: int = 0, cluster: str = "blue") -> JsonObject:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Machine",
        "metadata": {"name": name, "namespace": "fleet", "uid": f"uid-{name}"},
        "spec": {"clusterName": cluster, "providerID": f"id://{name}"},
        "status": {
            "bootstrapReady": True,
            "addresses": [{"type": "InternalIP", "address": f"10.0.{n >> 8}.{n & 255}"} for n in range(addresses)],
        },
    }


# What such an object means


def test_a_pool_that_is_not_read_may_list_every_instance_of_its_cluster_and_no_machine() -> None:
    inventory = Inventory()
    inventory.put_pool("fleet/large", pool(MANY, "large"))
    inventory.put_pool("fleet/honest", pool(1, "honest", prefix="y://"))
    inventory.put_machine("fleet/m", machine())
    inventory.put_pool("fleet/elsewhere", pool(1, "elsewhere", cluster="green", prefix="y://"))
    assert [(one.name, bool(one.flaw)) for one in inventory.members(BLUE, "y://0")] == [("large", True)]
    assert [one.name for one in inventory.members(BLUE, "id://m")] == ["m"]
    assert inventory.bootstrap_owner(BLUE, *inventory.members(BLUE, "id://m")).name == "m", "its token is none of it"
    assert [one.name for one in inventory.members(ClusterKey("fleet/green"), "y://0")] == ["elsewhere"]
    assert {one.name for one in inventory.members_of(BLUE)} == {"m", "honest"}
    assert inventory.members(BLUE, "") == [], "a request without a provider ID names no member"


def parses(action: Callable[[], object]) -> int:
    return calls(action, of=parse_attestation_policy.__code__)


# What it costs


@pytest.mark.parametrize("size", [1, MAX_INSTANCES + 1], ids=["small", "not-read"])
def test_a_lookup_costs_the_same_with_one_pool_and_with_a_thousand(size: int) -> None:
    inventory = Inventory()
    inventory.put_machine("fleet/m", machine())
    [member] = inventory.members(BLUE, "id://m")
    ledger: JsonObject = {
        "metadata": {"name": "l", "namespace": "fleet", "ownerReferences": [{**OWNER, "uid": "uid-p0"}]},
        "spec": {"clusterName": "blue", "providerID": "p0/0"},
    }
    inventory.put_attestation("fleet/l", ledger)
    large = dig(pool(size), "spec", "providerIDList")

    def add(number: int) -> None:
        one = pool(1, f"p{number}", prefix=f"p{number}/")
        if size > 1:
            one["spec"] = {"clusterName": "blue", "providerIDList": large}
        inventory.put_pool(f"fleet/p{number}", one)

    def lookups() -> list[int]:
        assert len(inventory.members(BLUE, "p0/0")) == 1
        assert inventory.own_attestation(BLUE, "p0/0") is not None
        return [
            calls(lambda: inventory.members(BLUE, "p0/0")),
            calls(lambda: inventory.is_owner(BLUE, "p0/0", "uid-p0")),
            calls(lambda: inventory.own_attestation(BLUE, "p0/0")),
            calls(lambda: inventory.bootstrap_owner(BLUE, member)),
        ]

    add(0)
    add(1)
    with_two = lookups()
    for number in range(2, 1000):
        add(number)
    assert lookups() == with_two


def test_a_change_of_a_large_list_costs_no_more_than_one_at_the_bound() -> None:
    inventory = Inventory()

    def change(obj: JsonObject) -> int:
        kept = bounded(obj)
        put = inventory.put_pool if obj["kind"] == "MachinePool" else inventory.put_machine
        return calls(lambda: (put("fleet/x", kept), object_size("x", ("", ""), kept)))

    assert change(pool(MANY)) < 5 * MAX_INSTANCES
    assert change(machine(addresses=30_000)) < 80 * MAX_ADDRESSES
    assert calls(lambda: inventory.put_pool("fleet/x", pool(MAX_INSTANCES))) < 3 * MAX_INSTANCES
    assert calls(lambda: inventory.members(BLUE, "x://7")) < 200


def test_what_is_derived_of_a_pool_takes_at_most_three_times_what_is_counted_of_it() -> None:
    inventory, kept = Inventory(), bounded(pool(MAX_INSTANCES))
    tracemalloc.start()
    inventory.put_pool("fleet/p", kept)
    derived, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert derived < 3 * object_size("p", ("", ""), kept)


async def test_one_namespaces_flood_of_objects_leaves_room_to_every_other() -> None:
    api, heard = management_api(), list[str]()
    for namespace, count in (("a-flood", 300), ("fleet", 20)):
        for number in range(count):
            path = f"{CAPI}/v1beta2/namespaces/{namespace}/machines/m{number}"
            api.put(path, {**machine(f"m{number}"), "metadata": {}})
    path = f"{CAPI}/v1beta2/machines"
    cache = Reflector(api, path, on_change=lambda key, _obj: heard.append(key), max_objects=100, shares=True)
    async with tasks(cache.run()):
        assert await cache.wait_synced(10), "too many objects are no reason to read none"
        assert Counter(key.split("/")[0] for key in heard) == {"a-flood": 50, "fleet": 20}


async def test_kinds_share_one_bound_of_memory_and_a_namespace_gets_half_of_it() -> None:
    api, memory, caches = FakeApi(), MemoryPool(1_000_000), list[Reflector]()
    for kind, namespace, number in (*product(range(6), "a", range(60)), *product(range(6), "b", range(10))):
        api.put(f"/api/v1/namespaces/{namespace}/kind{kind}/o{number}", {"metadata": {}, "data": {"x": "x" * 5_000}})

    async def follow() -> None:
        async with asyncio.TaskGroup() as group:
            informers = InformerSet(api, group, memory, namespace=None)
            caches.extend(informers.start(f"/api/v1/kind{kind}", lambda _key, _obj: None) for kind in range(6))

    async with tasks(follow()):
        await until(lambda: len(caches) == 6)
        assert all([await cache.wait_synced(60) for cache in caches])
        kept: Counter[str] = Counter()
        for item in chain(*(cache.values() for cache in caches)):
            kept[text(item, "metadata", "namespace")] += object_size("", ("", ""), item)
    assert 300_000 < kept["a"] <= 500_000
    assert kept["b"] > 0
    assert kept.total() <= memory.total


def test_a_namespace_gets_no_more_memory_by_more_clusters_and_gives_it_back_with_them() -> None:
    pool = MemoryPool(100_000)

    def kept(namespace: str) -> tuple[MemoryBudget, int]:
        requests = MemoryBudget(pool, objects=10_000, owner=namespace)
        return requests, [requests.take(f"r-{number}", 100) for number in range(1_000)].count(True)

    hostile = [kept("hostile") for _ in range(20)]
    assert [count for _, count in hostile] == [500] + [0] * 19
    assert kept("honest")[1] == 250
    for requests, _ in hostile:
        requests.close()
    assert pool.used == 25_000


async def test_a_refused_policy_is_parsed_once_for_all_clusters_and_again_when_it_changes() -> None:
    api = management_api()
    for number in range(50):
        add_cluster(api, f"c{number}", kubeconfig=None)
    add_policy(api, tpm={"x": [0.5]}, labels={})
    async with cached(api) as management:
        [policy] = management.policies("fleet")
        clusters = management.clusters_in("fleet")

        def ask_for_all() -> None:
            for cluster in clusters:
                with pytest.raises(Denied, match="a fraction"):
                    management.policy_of(cluster)

        assert len([cluster for cluster in clusters if management.opts_in(cluster)]) == 50
        first = parses(ask_for_all)
        assert (first, parses(ask_for_all)) == (1, 0)
        with pytest.raises(Denied, match="a fraction") as refused:
            management.parsed_policy(policy)
        with pytest.raises(Denied, match="a fraction") as again:
            management.parsed_policy(policy)
        assert refused.value is not again.value, "one task's exception is not another's"
        add_policy(api, tpm={"x": [5]})
        await until(lambda: management.policies("fleet") != [policy])
        assert parses(lambda: [management.policy_of(cluster) for cluster in clusters]) == 1


# A large Machine costs a few calls a member, whatever is large in it


LARGE = 1_400_000
"""Bytes; with the rest of the object, what etcd stores."""
OTHERS: JsonObject = {"apiVersion": "x/v1", "kind": "K", "name": "o", "uid": "u"}
LARGE_PARTS: dict[str, dict[str, Any]] = {
    "labels": {"metadata": {"labels": {f"k{number}": "" for number in range(LARGE // 12)}}},
    "owners": {"metadata": {"ownerReferences": [OTHERS] * (LARGE // 60)}},
    "conditions": {"status": {"conditions": [{"type": "Other", "status": "True"}] * (LARGE // 36)}},
}


def members(value: JsonValue) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(members, value.values()))
    return len(value) + sum(map(members, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize("part", LARGE_PARTS)
def test_a_large_machine_costs_a_few_calls_a_member(part: str) -> None:
    large: JsonObject = {**machine(), **LARGE_PARTS[part]}
    for read in (view_of_machine, bounded, without_managed_fields, pool_view):
        assert calls(partial(read, large)) <= 200 + 4 * members(large), read
