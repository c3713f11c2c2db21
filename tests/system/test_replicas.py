"""Two replicas: one leads, the other takes over when it is killed, and requests are answered once."""

from __future__ import annotations

from contextlib import ExitStack

from filing_requests import Wanted, file_request
from polling import eventually
from world import World

from nodeattest_sandbox.apiserver.jsonvalue import map_at, maps_at, text_at

CONFIG = """\
apiVersion: config.nodeattest.x-k8s.io/v1alpha1
kind: NodeAttestationControllerConfiguration
leaseDuration: 21s
"""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/nodeattest-system/leases/node-attestation-controller"


def test_a_second_replica_takes_over_when_the_leader_is_killed(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    with ExitStack() as stack:
        first, second = (world.controller(log=f"replica-{n}.log") for n in range(2))
        stack.enter_context(first)
        world.await_service(first)
        stack.enter_context(second)
        world.machine("before")
        filed = file_request(world, Wanted(node="before"))
        eventually(lambda: filed.state() == "issued", what="the leader's certificate")
        assert second.said("connected") is None

        first.kill()
        world.machine("after")
        filed = file_request(world, Wanted(node="after"))
        eventually(lambda: filed.state() == "issued", what="the successor's certificate")
        assert len(list(maps_at(world.ledger("before"), "spec", "issued"))) == 1


def test_a_leader_that_ends_cleanly_hands_its_lease_over_at_once(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"])
    config = world.directory / "replicas.yaml"
    config.write_text(CONFIG)
    with world.controller("--config", str(config), log="clean.log") as controller:
        world.await_service(controller)
        lease = world.admin.get(LEASE)
        assert map_at(lease, "spec")["leaseDurationSeconds"] == 21
        holder = text_at(lease, "spec", "holderIdentity")
        assert holder
        assert controller.terminate() == 0
    assert text_at(world.admin.get(LEASE), "spec", "holderIdentity") != holder
