"""``nodeattest explain machine/NAME``: what an operator learns of a join, from both clusters, by his own rights."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from typing import cast

import pytest
from operator_commands import nodeattest
from polling import eventually
from world import BIN, CSRS, NAMESPACE, Controller, World

from nodeattest_cli.explain.command import remedy_of
from nodeattest_cli.main import main
from nodeattest_controller import manifests
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.client import Client

LONG, SHORT = 40, 16
"""Characters of a word in a Secret, and of a whole value, from which on it is looked for."""
CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE").decode().rstrip("=")[:-1]
"""How the certificates of a kubeconfig begin, which are public."""


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["tpm"])
    with world.controller() as running:
        world.await_service(running)
        yield running


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


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
def test_why_a_machine_was_refused_is_said_also_when_its_request_is_gone(world: World) -> None:
    world.machine("explained-1", tpm=world.tpm("explained-2"))
    refused = world.agent("explained-1", "tpm", tcti=world.tpm("explained-1").tcti).join(world.token())
    assert refused.returncode != 0
    [request, *_] = world.requests_of("explained-1")
    reason = world.denial(request)
    assert reason

    done = nodeattest(world, "explain", "machine/explained-1")
    assert done.returncode == 1, done.stderr
    assert f"refused: {reason}" in done.stdout
    assert "FAIL" in done.stdout

    def claims() -> bool:
        rows = explained(nodeattest(world, "machines", "list", "explained-1", "-o", "json"), 0)
        return any(text_at(row, "refused") == reason for row in maps_at(rows, "machines"))

    eventually(claims, seconds=60, what="the refused claim in the Machine's condition")
    for one in world.requests_of("explained-1"):
        world.workload_admin.delete(f"{CSRS}/{text_at(one, 'metadata', 'name')}")
    gone = nodeattest(world, "explain", "machine/explained-1")
    assert gone.returncode == 1, gone.stdout
    assert f"refused   {reason}" in gone.stdout
    assert remedy_of(reason) in gone.stdout


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
def test_a_refused_renewal_is_explained_from_the_record_when_request_and_events_are_gone(world: World) -> None:
    name, tpm = "explained-4", world.tpm("explained-4")
    world.machine(name, tpm=tpm)
    agent = world.agent(name, "tpm", tcti=tpm.tcti)
    assert agent.join(world.token()).returncode == 0

    def recorded() -> list[JsonMap]:
        return list(maps_at(world.ledger(name), "status", "refusals"))

    world.set_policy(authorizedAttestors=["insecure"])
    world.await_policy()
    try:
        assert "AttestorNotAuthorized" in agent.join(world.token(), "--renew").stderr
        # Before the policy changes again: a change begins the cluster's controllers anew; what is not written is lost.
        [refusal] = eventually(recorded, seconds=60, what="the refused request in the record")
    finally:
        world.set_policy(authorizedAttestors=["tpm"])
    assert refusal["requester"] == "Node"
    assert text_at(refusal, "request") in {text_at(one, "metadata", "name") for one in world.requests_of(name)}
    for one in world.requests_of(name):
        world.workload_admin.delete(f"{CSRS}/{text_at(one, 'metadata', 'name')}")
    events = f"/api/v1/namespaces/{NAMESPACE}/events"
    for event in world.admin.list(events):
        world.admin.delete(f"{events}/{text_at(event, 'metadata', 'name')}")

    for target in (f"machine/{name}", f"node/{name}"):
        said = explained(nodeattest(world, "explain", target, "-o", "json"), 1)
        [shown] = maps_at(said, "refusals")
        assert (shown["reason"], shown["request"]) == ("AttestorNotAuthorized", refusal["request"])
        assert shown["remedy"] == remedy_of("AttestorNotAuthorized") != ""
        assert said["remedies"] == {"AttestorNotAuthorized": shown["remedy"]}
    plain = nodeattest(world, "explain", f"machine/{name}").stdout
    assert "AttestorNotAuthorized: by the machine's own node, last at " in plain
    assert remedy_of("AttestorNotAuthorized") in plain


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


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
def test_an_operator_needs_no_secret_and_is_told_what_could_not_be_read(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    tpm = world.tpm("explained-3")
    world.machine("explained-3", tpm=tpm)
    assert world.agent("explained-3", "tpm", tcti=tpm.tcti).join(world.token()).returncode == 0
    shipped = cast("list[JsonMap]", manifests.objects("rbac"))
    [role] = [one for one in shipped if text_at(one, "metadata", "name") == "nodeattest:operator"]
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    # Under another name: other tests of this management cluster apply the shipped roles.
    world.admin.create(f"{rbac}/clusterroles", {**role, "metadata": {"name": "explainer"}})
    subject: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "explainer"}
    reference: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "explainer"}
    body: JsonMap = {"metadata": {"name": "explainer"}, "subjects": [subject], "roleRef": reference}
    world.admin.create(
        f"{rbac}/clusterrolebindings",
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", **body},
    )
    access = ["--kubeconfig", str(world.management.client_kubeconfig("explainer")), "-n", "fleet", "-o", "json"]
    assert main(["explain", "machine/explained-3", *access]) == 0
    said = cast("JsonMap", json.loads(capsys.readouterr().out))
    left_out = cast("list[str]", said["leftOut"])
    assert any("-kubeconfig" in one for one in left_out)

    workload = ["--workload-kubeconfig", str(world.workload.admin_kubeconfig)]
    assert main(["explain", "machine/explained-3", *access, *workload]) == 0
    said = cast("JsonMap", json.loads(capsys.readouterr().out))
    left_out = cast("list[str]", said["leftOut"])
    assert [one.partition(" ")[0] for one in left_out] == ["DevMachine", "KubeadmConfig"]
    found = outcomes(said)
    assert found["the Machine's node name"] == "passed"
    assert "failed" not in found.values()
