"""A second policy that selects a fleet does not lock it out: on the sandbox and on a real kube-apiserver."""

from __future__ import annotations

from typing import Final

import pytest
from polling import eventually
from world import NAMESPACE, OWN, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at

POLICIES: Final = f"{OWN}/nodeattestationpolicies"


@pytest.mark.swtpm
def test_beside_a_second_policy_machines_join_under_the_one_that_their_records_name(world: World) -> None:
    world.set_policy(authorizedAttestors=["tpm"])
    with world.controller() as running:
        world.await_service(running)
        for name in ("first", "second"):
            tpm = world.tpm(name)
            world.machine(name, tpm=tpm)
            joined = world.agent(name, "tpm", tcti=tpm.tcti).join(world.token())
            assert joined.returncode == 0, joined.stderr
            [issued] = maps_at(world.ledger(name), "spec", "issued")
            assert issued["policy"] == "policy"
            if name == "first":
                world.admin.create(POLICIES, stray())
                for each in ("policy", "stray"):
                    eventually(lambda each=each: in_conflict(world, each), seconds=30, what="both conflicts")


def stray() -> JsonMap:
    """Make a policy that admits nobody, and selects every Cluster."""
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": "stray", "namespace": NAMESPACE},
        "spec": {"authorizedAttestors": []},
    }


def in_conflict(world: World, name: str) -> bool:
    """Tell whether a policy says Conflict, and names the one that goes on ruling."""
    stored = world.admin.get(f"{POLICIES}/{name}")
    reasons = {text_at(one, "type"): text_at(one, "reason") for one in maps_at(stored, "status", "conditions")}
    ruling = [text_at(one, "ruling") for one in maps_at(stored, "status", "conflicts")]
    return reasons.get("Ready") == "Conflict" and ruling == ["policy"]
