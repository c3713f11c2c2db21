"""A cluster's infrastructure objects are in the cache before the first request asks for them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from csr_world import CAPI, KEY, OneRound, World, machine

from nodeattest_controller.model.infrastructure_kinds import HOSTS
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import InfrastructurePolicy
from nodeattest_controller.runtime.references import PlatformCache
from nodeattest_kube.errors import Forbidden
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Unavailable
from nodeattest_sandbox.pki import ClusterPki

GROUP = "infrastructure.cluster.x-k8s.io"


async def object_of(platforms: PlatformCache, machine: MachineView) -> JsonObject:
    assert machine.infra is not None
    return await platforms.get(machine.infra, machine.namespace)


class ReadsInfrastructure(OneRound):
    reads_infrastructure = True


def serve_kind(world: World) -> None:
    """Let a Machine name an object of a kind that the management cluster serves."""
    world.management_api.documents[f"/apis/{GROUP}/v1"] = {"resources": [{"name": "kind0s", "kind": "Kind0"}]}
    made = machine("m-0", "metal://rack-1/0")
    reference: JsonObject = {"apiVersion": f"{GROUP}/v1", "kind": "Kind0", "name": "i"}
    made["spec"] = {**mapping(made, "spec"), "infrastructureRef": reference}
    world.management_api.put(f"{CAPI}/machines/m-0", made)


async def test_objects_are_kept_without_long_texts_once_their_kind_is_listed(pki: ClusterPki) -> None:
    world, listed = World(pki, ReadsInfrastructure()), asyncio.Event()
    api, platforms = world.management_api, world.management.platforms
    serve_kind(world)
    spec: JsonObject = {"providerID": "x://1", "disks": [{"size": 3}], "data": "x" * 2000}
    there: JsonObject = {"metadata": {"name": "i", "annotations": {"a": "b"}}, "spec": spec}

    async def slowly(method: str, path: str) -> None:
        if method == "LIST" and "/kind" in path:
            await listed.wait()

    api.on_call = slowly
    async with world.running():
        [member] = world.management.inventory.members(KEY, "metal://rack-1/0")
        with pytest.raises(Unavailable, match="Kind0 objects are being listed"):
            await object_of(platforms, member)
        listed.set()
        with pytest.raises(Unavailable, match="Kind0 i is not there"):
            await object_of(platforms, member)
        api.put(f"/apis/{GROUP}/v1/namespaces/fleet/kind0s/i", there)
        await world.settle()
        found = await object_of(platforms, member)
        assert mapping(found, "spec") == {"providerID": "x://1", "disks": [{"size": 3}]}
        assert mapping(found, "metadata", "annotations") == {"a": "b"}
        assert api.count("GET", "/kind0s") == 0


async def test_a_kind_that_cannot_be_listed_is_reported_and_holds_no_worker(pki: ClusterPki) -> None:
    world = World(pki, ReadsInfrastructure())
    serve_kind(world)
    world.management_api.fail("LIST", "/kind", Forbidden(403, "Forbidden", "no"), times=50)
    async with world.running():
        [member] = world.management.inventory.members(KEY, "metal://rack-1/0")
        with pytest.raises(Unavailable, match="cannot list Kind0"):
            await object_of(world.management.platforms, member)
        async with asyncio.timeout(0.9):  # less than the wait for a list that may come
            with pytest.raises(Unavailable, match="cannot list Kind0"):
                await object_of(world.management.platforms, member)


async def test_a_host_that_names_its_node_by_the_cluster_claims_that_name(pki: ClusterPki) -> None:
    world, kind = World(pki, ReadsInfrastructure()), "HetznerBareMetalHost"
    kinds: list[JsonValue] = [{"name": "hetznerbaremetalhosts", "kind": kind}]
    documents = world.management_api.documents
    documents[f"/apis/{GROUP}"] = {"versions": [{"version": "v1"}]}
    documents[f"/apis/{GROUP}/v1"] = {"resources": kinds}
    meta: JsonObject = {"name": "host-42", "namespace": "fleet"}
    path = f"/apis/{GROUP}/v1/namespaces/fleet/hetznerbaremetalhosts/host-42"
    world.management_api.put(path, {"metadata": meta, "spec": {"serverID": 42}})
    world.management_api.put(f"{CAPI}/machines/m-0", machine("m-0", "metal://rack-1/0"))
    async with world.running():
        [member] = world.management.inventory.members(KEY, "metal://rack-1/0")
        platforms, hosts, own = world.management.platforms, [HOSTS[GROUP, kind]], f"bm-{member.cluster_name}-42"
        with suppress(Unavailable):  # the first call begins to list
            await platforms.hosts_with_name(hosts, InfrastructurePolicy(), member, own)
        await world.settle()
        for name, expected in ((own, ["host-42"]), ("bm-another-42", [])):
            found = await platforms.hosts_with_name(hosts, InfrastructurePolicy(), member, name)
            assert [key.name for key in found] == expected
