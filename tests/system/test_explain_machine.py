"""``nodeattest explain machine/NAME``: what an operator learns of a join, from both clusters, by his own rights."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
from typing import cast

import pytest
from runbook import joined, nodeattest
from world import BIN, CSRS, NAMESPACE, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.client import Client

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
    joined(world, "explained-0")

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
    name, token = "explained-5", world.token()
    joined(world, name, token=token)
    configs = f"/apis/bootstrap.cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/kubeadmconfigs"
    named: JsonMap = {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": token}}}}
    config = world.admin.patch(f"{configs}/{name}", {"spec": named})
    assert token in json.dumps(config)
    file = world.directory / "bundle.json"
    exported = nodeattest(world, "evidence", "export", f"machine/{name}", "-o", str(file))
    assert exported.returncode == 0, exported.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    written = file.read_text()
    secrets = {token, token.partition(".")[2]} | secrets_of(world.admin) | secrets_of(world.workload_admin)
    assert [one for one in secrets if one in written] == []
    assert "PRIVATE KEY" not in written

    live = explained(nodeattest(world, "explain", f"machine/{name}", "-o", "json"), 0)
    offline = subprocess.run(
        [BIN / "nodeattest", "explain", str(file), "-o", "json"],
        capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], "KUBECONFIG": "/nowhere"},
    )  # fmt: skip
    assert explained(offline, 0) == live
