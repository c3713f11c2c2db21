"""Machines that join before Cluster API has set their provider ID, at a reconciler with its caches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import CSRS, OneRound, World, attested, request
from late_machines import put_byo, put_host, put_machine, put_metal3, serve_metal3

from nodeattest_controller.controllers.csr.reconciler import DONE, REQUEUE
from nodeattest_controller.runtime.informers import machine_key
from nodeattest_parsing.objects import text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonValue
from nodeattest_providers.errors import Reason
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
        return await super().verify_client_attestation_data(request, facts)


async def test_a_node_renews_by_its_recorded_key_while_its_host_object_is_gone(pki: ClusterPki) -> None:
    verifier = ReadsInfrastructure()
    async with late(pki, verifier, hostObjects=["BareMetalHost"]) as world:
        ask(world, node="rack-1")
        assert await decided(world) == "Approved"
        world.management_api.remove(put_host(world, "rack-1", consumer="m-1"))
        put_machine(world, "m-1", "abcdef", provider_id=EXPECTED)
        world.workload_api.put(
            "/api/v1/nodes/rack-1", {"metadata": {"name": "rack-1"}, "spec": {"providerID": EXPECTED}}
        )
        await world.settle()
        ask(world, "r-2", node="rack-1", username="system:node:rack-1", groups=["system:nodes"])
        assert await decided(world, "r-2") == "Approved"
        assert verifier.keys == {"MachineAttestation spec.fingerprints": "sha256:ek"}
