"""``nodeattest explain machine/NAME``: what an operator learns of a join, from both clusters, by his own rights."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest
from runbook import SPENT, joined, nodeattest
from world import BIN, CSRS, NAMESPACE, OWN, World, built_world

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import StartControlPlane

LONG, SHORT = 40, 16
"""Characters of a word in a Secret, and of a whole value, from which on it is looked for."""
CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE").decode().rstrip("=")[:-1]
"""How the certificates of a kubeconfig begin, which are public."""


def explained(done: subprocess.CompletedProcess[str], code: int) -> JsonMap:
    assert done.returncode == code, done.stdout + done.stderr
    return cast("JsonMap", json.loads(done.stdout))


def outcomes(said: JsonMap) -> dict[str, str]:
    return {text_at(check, "name"): text_at(check, "outcome") for check in maps_at(said, "checks")}


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
def test_a_machine_a_node_and_a_request_are_explained_by_name(world: World) -> None:
    tpm = world.tpm("explained-0")
    world.machine("explained-0", tpm=tpm)
    joined = world.agent("explained-0", "tpm", tcti=tpm.tcti).join(world.token())
    assert joined.returncode == 0, joined.stderr

    said = explained(nodeattest(world, "explain", "machine/explained-0", "-o", "json"), 0)
    assert map_at(said, "machine")["attested"] is True
    assert said["leftOut"] == []
    found = outcomes(said)
    assert "failed" not in found.values()
    assert found["the Machine's node name"] == found["first request still pending"] == "passed"
    request = text_at(said, "facts", "request")
    assert request in {text_at(one, "metadata", "name") for one in world.requests_of("explained-0")}

    for target in ("node/explained-0", "machine/sandbox://explained-0", f"csr/{request}"):
        again = explained(nodeattest(world, "explain", target, "-o", "json"), 0)
        assert text_at(again, "facts", "request") == request
        assert text_at(again, "machine", "machine") == "explained-0"

    for one in world.requests_of("explained-0"):
        world.workload_admin.delete(f"{CSRS}/{text_at(one, 'metadata', 'name')}")
    gone = nodeattest(world, "explain", "machine/explained-0")
    assert gone.returncode == 0, gone.stderr
    assert "Attested" in gone.stdout
    assert "no request of it can be replayed" in gone.stdout
    missing = nodeattest(world, "explain", f"csr/{request}")
    assert missing.returncode == 1
    assert "machine/NAME" in missing.stderr


def secrets_of(plane: Client) -> set[str]:
    """Return every value of every Secret, as it is and as base64, and the lines of keys in kubeconfigs."""
    found: set[str] = set()
    for secret in plane.list("/api/v1/secrets"):
        for name, value in map_at(secret, "data").items():
            if name in {"tls.crt", "auth-extra-groups"} or not isinstance(value, str):
                continue
            plain = base64.b64decode(value).decode("utf-8", "replace")
            found |= {value, plain, *(word for word in plain.split() if len(word) >= LONG)}
    return {one for one in found if len(one) >= SHORT and CERTIFICATE not in one}


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
def test_a_bundle_holds_no_secret_and_explains_the_same_without_a_cluster(world: World) -> None:
    name, tpm = "explained-5", world.tpm("explained-5")
    world.machine(name, tpm=tpm)
    token = world.token()
    assert world.agent(name, "tpm", tcti=tpm.tcti).join(token).returncode == 0
    configs = f"/apis/bootstrap.cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/kubeadmconfigs"
    named: JsonMap = {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": token}}}}
    world.admin.patch(f"{configs}/{name}", {"spec": named})
    file = world.directory / "bundle.json"
    exported = nodeattest(world, "evidence", "export", f"machine/{name}", "-o", str(file))
    assert exported.returncode == 0, exported.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    written = file.read_text()
    config = world.admin.get(f"{configs}/{name}")
    assert token in json.dumps(config)
    secrets = {token, token.partition(".")[2]} | secrets_of(world.admin) | secrets_of(world.workload_admin)
    assert [one for one in secrets if one in written] == []
    assert "PRIVATE KEY" not in written

    live = explained(nodeattest(world, "explain", f"machine/{name}", "-o", "json"), 0)
    offline = subprocess.run(
        [BIN / "nodeattest", "explain", str(file), "-o", "json"],
        capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], "KUBECONFIG": "/nowhere"},
    )  # fmt: skip
    assert explained(offline, 0) == live


pytestmark = pytest.mark.swtpm

GOOD: Final[JsonMap] = {"authorizedAttestors": ["tpm"], "tokenBinding": "Off"}


@pytest.fixture
def fleet_alone(start_control_plane: StartControlPlane, tmp_path: Path) -> Iterator[World]:
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


def test_a_renewal_meets_what_was_simulated(fleet_alone: World, tmp_path: Path) -> None:
    fleet_alone.set_policy(**GOOD)
    with fleet_alone.controller("--leader-elect", "false") as controller:
        fleet_alone.await_service(controller)
        node = joined(fleet_alone, "simulated-0")
        (record,) = fleet_alone.admin.list(f"{OWN}/machineattestations")
        quoted = map_at(record, "spec", "boot", "pcrs")
        assert text_at(quoted, "7")

        same: JsonMap = {**GOOD, "tpm": {"pcrs": {"values": {"7": [quoted["7"]]}}}}
        assert simulated(fleet_alone, tmp_path, same, 0)["outcome"] == "passes"
        other: JsonMap = {**GOOD, "tpm": {"pcrs": {"values": {"7": ["0f" * 32]}}}}
        told = simulated(fleet_alone, tmp_path, other, 1)
        assert (told["outcome"], told["reason"]) == ("refused", "PCRValueNotAllowed")

        fleet_alone.set_policy(**other)
        fleet_alone.await_policy()
        refused = node.join(SPENT, "--renew")
        assert text_at(told, "reason") in refused.stderr
        fleet_alone.set_policy(**same)
        fleet_alone.await_policy()
        renewed = node.join(SPENT, "--renew")
        assert renewed.returncode == 0, renewed.stderr
