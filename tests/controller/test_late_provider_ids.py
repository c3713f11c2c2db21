"""Machines that join before Cluster API has set their provider ID, and the caches of infrastructure objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import CAPI, CSRS, KEY, OneRound, World, attested, machine, request
from late_machines import GROUP, put_byo, put_host, put_machine, put_metal3, serve_metal3

from nodeattest_controller.controllers.csr.reconciler import DONE, REQUEUE
from nodeattest_controller.model.infrastructure_kinds import HOSTS
from nodeattest_controller.model.machine_view import ContractReference
from nodeattest_controller.model.policy import InfrastructurePolicy
from nodeattest_controller.runtime.informers import machine_key
from nodeattest_kube.errors import Forbidden
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Check, Reason, Unavailable
from nodeattest_providers.identifiers import ANNOTATION_REASON, ProviderID
from nodeattest_providers.verifier_interface import AttestedNode, Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki

EXPECTED: Final = ProviderID("metal3://fleet/rack-1/m-1")


@asynccontextmanager
async def late(pki: ClusterPki, verifier: OneRound | None = None, **infrastructure: JsonValue) -> AsyncGenerator[World]:
    """Run a world whose Machine m-1, on the host rack-1, has no provider ID yet; ``infrastructure`` is the policy's."""
    world = World(pki, verifier or OneRound())
    serve_metal3(world)
    world.policy(tokenBinding="Required", infrastructure=infrastructure)
    put_machine(world, "m-1", "abcdef")
    put_host(world, "rack-1", consumer="m-1")
    async with world.running():
        await world.follow()
        await world.settle()
        yield world


async def decided(world: World, name: str = "r-1") -> str:
    """Reconcile a request until the caches have settled; returns its reason, or Approved."""
    for _turn in range(3):
        await world.reconcile(name)
        await world.settle()
        if world.condition("Approved", name):
            return "Approved"
        if world.condition("Denied", name):
            return world.condition("Denied", name)
    return world.annotation(ANNOTATION_REASON, name).partition(":")[0]


def ask(world: World, name: str = "r-1", **changes: object) -> None:
    given = {"node": "m-1", "provider_id": EXPECTED, **changes}
    made = request(name, **given)  # pyright: ignore[reportArgumentType] - the tests name real parameters
    world.workload_api.put(f"{CSRS}/{name}", made)


def lifetime(world: World, name: str = "r-1") -> timedelta:
    certificate = x509.load_pem_x509_certificate(decode_base64(text(world.csr(name), "status", "certificate")))
    return certificate.not_valid_after_utc - certificate.not_valid_before_utc


async def test_a_machine_joins_before_cluster_api_has_its_provider_id_and_for_a_day_at_most(pki: ClusterPki) -> None:
    async with late(pki) as world:
        ask(world)
        assert await decided(world) == "Approved"
        assert lifetime(world) <= timedelta(hours=24, minutes=10)
        [record] = world.attestations()
        assert text(record, "spec", "providerID") == EXPECTED
        assert text(record, "spec", "providerIDSource").startswith("Metal3Machine expression metal3://")
        assert text(record, "spec", "sources", "nodeName") == "Machine metadata.name"


async def test_a_refusal_is_told_at_the_machine_of_the_token(pki: ClusterPki) -> None:
    async with late(pki) as world:
        ask(world, provider_id="metal3://fleet/rack-1/another")
        assert await decided(world) == Reason.PROVIDER_ID_MISMATCH
        await world.events.drain()
        [event] = [one for path, one in world.management_api.objects.items() if "/events/" in path]
        assert (text(event, "involvedObject", "kind"), text(event, "involvedObject", "name")) == ("Machine", "m-1")


async def test_a_request_waits_for_its_own_machine_and_no_other(pki: ClusterPki) -> None:
    async with late(pki) as world:
        put_machine(world, "m-2", "fedcba", host="")
        await world.settle()
        for name, provider_id in (("r-1", ""), ("r-2", "metal3://fleet/rack-2/m-2")):
            ask(world, name, provider_id=provider_id, username="system:bootstrap:fedcba")
            assert (await world.reconcile(name)).waits_for == machine_key("uid-m-2")
        ask(world, "r-3", provider_id="", username="system:bootstrap:ffffff")
        result = await world.reconcile("r-3")
        assert result.waits_for is not None
        assert result.waits_for not in {"", machine_key("uid-m-1"), machine_key("uid-m-2")}


@pytest.mark.parametrize(
    ("slow", "quick", "held"), [("m-2", "guest", "/machineattestations"), ("guest", "m-2", "/nodes/guest")]
)
async def test_of_one_machine_that_asks_for_two_provider_ids_at_once_one_is_recorded(
    pki: ClusterPki, slow: str, quick: str, held: str
) -> None:
    """By two names, two keys and two TPMs, and with a suffix that is free until one is recorded."""
    async with late(pki) as world:
        put_machine(world, "m-2", "fedcba", kind="ByoMachine", addresses=[{"type": "Hostname", "address": "guest"}])
        put_byo(world, "m-2", "host")
        await world.follow()
        for name, suffix in (("m-2", "a"), ("guest", "b")):
            ask(world, name, node=name, provider_id=f"byoh://host/{suffix}", username="system:bootstrap:fedcba",
                key=ec.generate_private_key(ec.SECP256R1()))  # fmt: skip
        await world.settle()
        ends = await world.overtake(slow, quick, held, answer=attested(ek="sha256:another"))
        assert ends == {"m-2": DONE, "guest": REQUEUE}
        assert await world.reconcile("guest") == DONE
        assert world.condition("Denied", "guest") == Reason.PROVIDER_ID_MISMATCH
        assert len(world.attestations()) == 1


async def test_a_duplicate_provider_id_ends_no_renewal(pki: ClusterPki) -> None:
    async with late(pki) as world:
        ask(world)
        assert await decided(world) == "Approved"
        put_metal3(world, "other", provider_id=EXPECTED)
        world.workload_api.put("/api/v1/nodes/m-1", {"metadata": {"name": "m-1"}, "spec": {"providerID": EXPECTED}})
        await world.settle()
        ask(world, "r-2", username="system:node:m-1", groups=["system:nodes"])
        assert await decided(world, "r-2") == "Approved"


class ReadsInfrastructure(OneRound):
    reads_infrastructure = True
    keys: Mapping[str, str] = MappingProxyType({})

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        self.keys = facts.machine.endorsement_keys
        bound = Check("endorsement key: named by the platform", "step 4", "sha256:ek (BareMetalHost)", "", passed=True)
        attested = await super().verify_client_attestation_data(request, facts)
        return replace(attested, checks=(*attested.checks, bound))


async def test_a_node_renews_by_its_recorded_key_while_its_host_object_is_gone(pki: ClusterPki) -> None:
    verifier = ReadsInfrastructure()
    async with late(pki, verifier, hostObjects=["BareMetalHost"]) as world:
        ask(world, node="rack-1")
        assert await decided(world) == "Approved"
        sources = mapping(world.attestations()[0], "spec", "sources")
        assert sources == {
            "nodeName": "BareMetalHost",
            "endorsementKey": "named by the platform: sha256:ek (BareMetalHost)",
        }
        world.management_api.remove(put_host(world, "rack-1", consumer="m-1"))
        put_machine(world, "m-1", "abcdef", provider_id=EXPECTED)
        world.workload_api.put(
            "/api/v1/nodes/rack-1", {"metadata": {"name": "rack-1"}, "spec": {"providerID": EXPECTED}}
        )
        await world.settle()
        ask(world, "r-2", node="rack-1", username="system:node:rack-1", groups=["system:nodes"])
        assert await decided(world, "r-2") == "Approved"
        assert verifier.keys == {"MachineAttestation spec.fingerprints": "sha256:ek"}
        assert mapping(world.attestations()[0], "spec", "sources") == sources


# A cluster's infrastructure objects are in the cache before the first request asks for them


BOX = ContractReference(GROUP, "Kind0", "i", "v1")


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
        with pytest.raises(Unavailable, match="Kind0 objects are being listed"):
            await platforms.get(BOX, "fleet")
        listed.set()
        with pytest.raises(Unavailable, match="Kind0 i is not there"):
            await platforms.get(BOX, "fleet")
        api.put(f"/apis/{GROUP}/v1/namespaces/fleet/kind0s/i", there)
        await world.settle()
        found = await platforms.get(BOX, "fleet")
        assert mapping(found, "spec") == {"providerID": "x://1", "disks": [{"size": 3}]}
        assert mapping(found, "metadata", "annotations") == {"a": "b"}
        assert api.count("GET", "/kind0s") == 0


async def test_a_kind_that_cannot_be_listed_is_reported_and_holds_no_worker(pki: ClusterPki) -> None:
    world = World(pki, ReadsInfrastructure())
    serve_kind(world)
    world.management_api.fail("LIST", "/kind", Forbidden(403, "Forbidden", "no"), times=50)
    async with world.running():
        with pytest.raises(Unavailable, match="cannot list Kind0"):
            await world.management.platforms.get(BOX, "fleet")
        async with asyncio.timeout(0.9):  # less than the wait for a list that may come
            with pytest.raises(Unavailable, match="cannot list Kind0"):
                await world.management.platforms.get(BOX, "fleet")


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
