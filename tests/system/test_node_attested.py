"""The condition NodeAttested and a policy's onFailure, from end to end."""

from __future__ import annotations

import pytest
from kubelet_requests import register_node
from polling import eventually
from world import NAMESPACE, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at

CAPI = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}"
REASON = "PCRValueNotAllowed"
FLAGS = ("--leader-elect", "false")


def shown(world: World, machine: str, kind: str = "machines") -> JsonMap:
    """Return the condition of a Machine, or an empty object."""
    found = world.admin.get(f"{CAPI}/{kind}/{machine}")
    nothing: JsonMap = {}
    conditions = maps_at(found, "status", "conditions")
    return next((one for one in conditions if text_at(one, "type") == "NodeAttested"), nothing)


def says(world: World, machine: str, status: str, reason: str, kind: str = "machines") -> JsonMap | None:
    condition = shown(world, machine, kind)
    is_so = (text_at(condition, "status"), text_at(condition, "reason")) == (status, reason)
    return condition if is_so else None


def marks(world: World, node: str) -> list[str]:
    """Return the values of our taints on a Node."""
    taints = maps_at(world.workload_admin.get(f"/api/v1/nodes/{node}"), "spec", "taints")
    return [text_at(taint, "value") for taint in taints if text_at(taint, "key").startswith("attestation.")]


@pytest.mark.swtpm
def test_a_tpm_that_shows_another_boot_than_the_policy_wants_is_cordoned_until_it_shows_the_right_one(
    world: World,
) -> None:
    zero: JsonMap = {"selection": [16], "values": {"16": ["00" * 32]}}
    other: JsonMap = {"selection": [16], "values": {"16": ["ab" * 32]}}
    world.set_policy(authorizedAttestors=["tpm"], tpm={"pcrs": zero})
    with world.controller(*FLAGS, log="standing-tpm.log") as controller:
        world.await_service(controller)
        tpm = world.tpm("st-tpm")
        world.machine("st-tpm", tpm=tpm)
        agent = world.agent("st-tpm", "tpm", tcti=tpm.tcti)
        joined = agent.join(world.token())
        assert joined.returncode == 0, joined.stderr
        register_node(world, "st-tpm")
        eventually(lambda: says(world, "st-tpm", "True", "Attested"), seconds=60, what="the condition")
        policy: JsonMap = {"pcrs": other}
        world.set_policy(authorizedAttestors=["tpm"], tpm=policy, onFailure="Cordon", maxFailedShare=100)
        refused = agent.join(world.token(), "--renew")
        assert REASON in refused.stderr
        assert [text_at(one, "spec", "username") for one in world.requests_of("st-tpm")].count("system:node:st-tpm")
        eventually(lambda: says(world, "st-tpm", "False", REASON), seconds=60, what="the condition")
        eventually(lambda: marks(world, "st-tpm") == ["Cordon"], seconds=60, what="the cordon")
        world.set_policy(authorizedAttestors=["tpm"], tpm={"pcrs": zero}, onFailure="Cordon", maxFailedShare=100)
        renewed = agent.join(world.token(), "--renew")
        assert renewed.returncode == 0, renewed.stderr
        eventually(lambda: marks(world, "st-tpm") == [], seconds=60, what="the release")
        eventually(lambda: says(world, "st-tpm", "True", "Attested"), seconds=60, what="the condition")
