"""``machines rejoin``: a token for one machine, short, for authentication only, and only where it is of use."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from attested_fleet import NAMESPACE, AttestedFleet

from nodeattest_cli.main import main
from nodeattest_controller.model.issuance_rules import bound_group
from nodeattest_parsing.objects import moment
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.control_plane import start_sandbox

RBAC = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
MACHINES = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines"
KUBEADM_GROUP = "system:bootstrappers:kubeadm:default-node-token"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttestedFleet]:
    with start_sandbox(tmp_path_factory.mktemp("rejoin"), name="both") as plane:
        yield AttestedFleet.build(plane, "blue")


def rejoin(fleet: AttestedFleet, *words: str) -> int:
    return main(["machines", "rejoin", *words, *fleet.access])


def issued(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str], *words: str) -> JsonMap:
    assert rejoin(fleet, *words, "-o", "json") == 0
    return json.loads(capsys.readouterr().out)


def secret_of(fleet: AttestedFleet, token: str) -> dict[str, str]:
    stored = fleet.client.get(f"{SECRETS}/bootstrap-token-{token.partition('.')[0]}")
    assert stored["type"] == "bootstrap.kubernetes.io/token"
    return {key: base64.b64decode(str(value)).decode() for key, value in map_at(stored, "data").items()}


def bind(fleet: AttestedFleet, name: str, role: str = "system:node-bootstrapper") -> None:
    api = "rbac.authorization.k8s.io"
    body: JsonMap = {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": api, "kind": "Group", "name": "system:bootstrappers"}],
    }
    fleet.client.create(RBAC, body)


def test_the_token_is_bound_to_the_machine_short_and_for_authentication_only(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.machine("late")
    made = issued(fleet, capsys, "late", "--ttl", "10m")
    token = text_at(made, "token")
    data = secret_of(fleet, token)
    assert f"{data['token-id']}.{data['token-secret']}" == token
    ends = moment(data["expiration"])
    assert ends is not None
    assert abs(ends - datetime.now(UTC) - timedelta(minutes=10)) < timedelta(seconds=30)
    assert data["usage-bootstrap-authentication"] == "true"
    assert "usage-bootstrap-signing" not in data
    assert bound_group("fleet/blue", "metal://blue/late") in data["auth-extra-groups"].split(",")
    assert "late" in data["description"]


def test_the_command_is_complete_and_the_token_is_shown_once(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.machine("shown")
    assert rejoin(fleet, "shown") == 0
    said = capsys.readouterr().out
    [token] = [line.strip() for line in said.splitlines() if len(line.strip()) == 23 and line.strip()[6] == "."]
    assert said.count(token.partition(".")[2]) == 1
    command = said.splitlines()[-1].split()
    assert command[:2] == ["kubelet-authenticator", "join"]
    options = dict(zip(command[2::2], command[3::2], strict=True))
    assert options["--server"] == fleet.plane.server
    assert (options["--provider"], options["--node-name"]) == ("tpm", "shown")
    assert options["--provider-id"] == "metal://blue/shown"
    assert options["--token-file"] == "-"


def test_kubeadms_group_is_given_only_where_nothing_else_lets_tokens_ask(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.machine("grouped")
    assert KUBEADM_GROUP in secret_of(fleet, text_at(issued(fleet, capsys, "grouped"), "token"))["auth-extra-groups"]
    bind(
        fleet, "kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
    )
    assert rejoin(fleet, "grouped") == 0
    assert "kubeadm:node-autoapprove-bootstrap" in capsys.readouterr().err
    bind(fleet, "nodeattest:node-bootstrapper")
    try:
        assert rejoin(fleet, "grouped", "-o", "json") == 0
        said = capsys.readouterr()
        assert said.err == ""
        groups = secret_of(fleet, json.loads(said.out)["token"])["auth-extra-groups"]
        assert groups == bound_group("fleet/blue", "metal://blue/grouped")
    finally:
        for name in ("nodeattest:node-bootstrapper", "kubeadm:node-autoapprove-bootstrap"):
            fleet.client.delete(f"{RBAC}/{name}")


def refused(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str], name: str, code: int = 1) -> str:
    before = fleet.client.list(SECRETS)
    assert rejoin(fleet, name) == code
    assert fleet.client.list(SECRETS) == before
    return capsys.readouterr().err


@pytest.mark.parametrize("provider", ["insecure", "challenge"])
def test_a_machine_that_joins_once_is_reset_first(
    fleet: AttestedFleet, provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.machine(f"once-{provider}", provider=provider)
    assert "nodeattest machines reset" in refused(fleet, capsys, f"once-{provider}")
    assert main(["machines", "reset", f"once-{provider}", "--reason", "r", "--yes", *fleet.access]) == 0
    assert rejoin(fleet, f"once-{provider}") == 0


def test_a_machine_that_is_being_deleted_or_gone_gets_none(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.machine("leaving")
    fleet.client.patch(f"{MACHINES}/leaving", {"metadata": {"finalizers": ["tests.example/hold"]}})
    fleet.client.delete(f"{MACHINES}/leaving")
    assert "being deleted" in refused(fleet, capsys, "leaving")
    fleet.client.patch(f"{MACHINES}/leaving", {"metadata": {"finalizers": []}})


def test_the_ledger_of_a_machine_made_anew_under_its_name_gets_none(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = fleet.machine("anew")
    name = text_at(ledger, "metadata", "name")
    path = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/machineattestations/{name}"
    owner: JsonMap = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": "anew", "uid": "another"}
    fleet.client.patch(path, {"metadata": {"ownerReferences": [owner]}})
    assert "being deleted" in refused(fleet, capsys, "anew")
