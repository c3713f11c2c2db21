"""What ``policy simulate`` says of a node that really joined is what its next renewal meets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest
from runbook import SPENT, joined, nodeattest
from world import NAMESPACE, OWN, World, built_world

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import StartControlPlane

pytestmark = pytest.mark.swtpm

GOOD: Final[JsonMap] = {"authorizedAttestors": ["tpm"], "tokenBinding": "Off"}


@pytest.fixture
def world(start_control_plane: StartControlPlane, tmp_path: Path) -> Iterator[World]:
    """A world without other tests' machines: all of a fleet is listed here."""
    with built_world(start_control_plane, tmp_path) as built:
        yield built


def simulated(world: World, folder: Path, spec: JsonMap, code: int) -> JsonMap:
    """Simulate a policy of the name that is in force; returns the one machine."""
    path = folder / "policy.json"
    head: JsonMap = {"apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeAttestationPolicy"}
    path.write_text(json.dumps({**head, "metadata": {"name": "policy", "namespace": NAMESPACE}, "spec": spec}))
    done = nodeattest(world, "policy", "simulate", "-f", str(path), "-o", "json")
    assert done.returncode == code, done.stdout + done.stderr
    (machine,) = maps_at(cast("JsonMap", json.loads(done.stdout)), "machines")
    return machine


def test_a_renewal_meets_what_was_simulated(world: World, tmp_path: Path) -> None:
    world.set_policy(**GOOD)
    with world.controller("--leader-elect", "false") as controller:
        world.await_service(controller)
        node = joined(world, "simulated-0")
        (record,) = world.admin.list(f"{OWN}/machineattestations")
        quoted = map_at(record, "spec", "boot", "pcrs")
        assert text_at(quoted, "7")

        same: JsonMap = {**GOOD, "tpm": {"pcrs": {"values": {"7": [quoted["7"]]}}}}
        assert simulated(world, tmp_path, same, 0)["outcome"] == "passes"
        other: JsonMap = {**GOOD, "tpm": {"pcrs": {"values": {"7": ["0f" * 32]}}}}
        told = simulated(world, tmp_path, other, 1)
        assert (told["outcome"], told["reason"]) == ("refused", "PCRValueNotAllowed")

        world.set_policy(**other)
        world.await_policy()
        refused = node.join(SPENT, "--renew")
        assert text_at(told, "reason") in refused.stderr
        world.set_policy(**same)
        world.await_policy()
        renewed = node.join(SPENT, "--renew")
        assert renewed.returncode == 0, renewed.stderr
