"""``machines adopt``: which nodes are not in the ledger, what to run for each, and one Machine opened on record."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from attested_fleet import LEDGERS, NAMESPACE, AttestedFleet

from nodeattest_cli.main import main
from nodeattest_controller.model.attestation import parse_attestation
from nodeattest_controller.model.issuance_rules import bound_group
from nodeattest_providers.identifiers import printable
from nodeattest_sandbox import fleet as sandbox_fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import start_sandbox

NODES = "/api/v1/nodes"
POLICIES = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/nodeattestationpolicies"
SECRETS = "/api/v1/namespaces/kube-system/secrets"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttestedFleet]:
    with start_sandbox(tmp_path_factory.mktemp("adopt"), name="both") as plane:
        made = AttestedFleet.build(plane, "blue")
        made.machine("attested")
        register(made, "attested", "metal://blue/attested")
        old(made, "veteran")
        register(made, "stray", "metal://nowhere/stray")
        authorize(made, "tpm")
        yield made


def register(fleet: AttestedFleet, name: str, provider_id: str, *, ready: str = "True") -> JsonMap:
    spec: JsonMap = {"providerID": provider_id} if provider_id else {}
    body: JsonMap = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}
    made = fleet.client.create(NODES, body)
    conditions: list[JsonValue] = [{"type": "Ready", "status": ready}]
    fleet.client.patch(f"{NODES}/{name}/status", {"status": {"conditions": conditions}})
    return made


def old(fleet: AttestedFleet, name: str, *, ready: str = "True", has_id: bool = True) -> None:
    """Make a Machine whose node joined without attestation."""
    provider_id = f"metal://blue/{name}"
    node = register(fleet, name, provider_id if has_id else "", ready=ready)
    reference: JsonMap = {"kind": "Node", "name": name, "uid": text_at(node, "metadata", "uid")}
    cluster = fleet.clusters["blue"]
    sandbox_fleet.create_machine(fleet.client, name, cluster=cluster, provider_id=provider_id, node=reference)


def authorize(fleet: AttestedFleet, *attestors: str) -> None:
    """Make this the one policy."""
    for policy in fleet.client.list(POLICIES):
        fleet.client.delete(f"{POLICIES}/{text_at(policy, 'metadata', 'name')}")
    body: JsonMap = {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": "p"},
        "spec": {"authorizedAttestors": [*attestors]},
    }
    fleet.client.create(POLICIES, body)


def adopt(fleet: AttestedFleet, *words: str) -> int:
    return main(["machines", "adopt", *words, *fleet.access])


def listed(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, JsonMap]:
    assert adopt(fleet, *(words or ("--all",)), "-o", "json") == 0
    document: JsonMap = json.loads(capsys.readouterr().out)
    return {text_at(one, "node"): one for one in maps_at(document, "nodes")}


def test_nodes_outside_of_the_ledger_are_listed_each_with_what_to_run(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    found = listed(fleet, capsys)
    assert {"veteran", "stray"} <= found.keys()
    assert "attested" not in found
    words = ["kubelet-authenticator", "adopt", "--provider", "tpm", "--provider-id", "metal://blue/veteran"]
    assert found["veteran"]["command"] == words
    assert (found["veteran"]["todo"], found["stray"]["todo"]) == ("adopt", "none")
    assert "no Machine has its provider ID metal://nowhere/stray" in text_at(found["stray"], "says")
    assert adopt(fleet, "--all") == 0
    said = capsys.readouterr().out
    assert "nodes are not in the ledger" in said
    assert " ".join(words) in said


def test_where_the_policy_proves_nothing_or_names_several_it_is_said(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        authorize(fleet, "insecure")
        found = listed(fleet, capsys, "veteran")["veteran"]
        assert found["todo"] == "open"
        authorize(fleet, "tpm", "aws")
        found = listed(fleet, capsys, "veteran")["veteran"]
        assert "PROVIDER is one of aws, tpm" in text_at(found, "says")
        assert adopt(fleet, "veteran", "--open", "--reason", "r", "--dry-run") == 2
        assert "--provider: the policy names aws, tpm" in capsys.readouterr().err
    finally:
        authorize(fleet, "tpm")


@pytest.mark.parametrize(
    ("code", "words", "says"),
    [
        (2, (), "expected names of Machines, or --all"),
        (2, ("veteran", "--all"), "expected names of Machines, or --all"),
        (1, ("attested",), "no node attested is outside of the ledger"),
        (2, ("--all", "--open", "--reason", "r"), "--open opens one Machine"),
        (2, ("veteran", "stray", "--open", "--reason", "r"), "--open opens one Machine"),
        (2, ("veteran", "--open"), "--reason: expected"),
        (2, ("veteran", "--open", "--reason", "r", "--ttl", "25h"), "--ttl: expected"),
        (
            2,
            ("veteran", "--open", "--reason", "r", "--provider", "aws"),
            "--provider: expected one of the policy's tpm",
        ),
        (1, ("stray", "--open", "--reason", "r"), "no Machine has its provider ID"),
        (1, ("--all", "--cluster", "red"), "no Cluster or ClusterRecord red"),
    ],
)
def test_what_cannot_be_is_one_clear_line_and_changes_nothing(
    fleet: AttestedFleet, code: int, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fleet.client.list(LEDGERS), fleet.client.list(SECRETS)
    assert adopt(fleet, *words) == code
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert (fleet.client.list(LEDGERS), fleet.client.list(SECRETS)) == before


FORGED = "metal://blue/x\x1b[2K\rfleet/blue node good: fine\n  kubelet-authenticator adopt --provider insecure"
PADDED = "metal://blue/y" + " " * 20 + "fleet/blue node good: fine"


@pytest.mark.parametrize("provider_id", [FORGED, PADDED, "metal://blue/\N{RIGHT-TO-LEFT OVERRIDE}z"])
def test_a_nodes_own_words_forge_no_line_and_move_no_cursor(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str], provider_id: str
) -> None:
    register(fleet, "forger", provider_id)
    try:
        assert listed(fleet, capsys, "forger")["forger"]["providerID"] == provider_id
        assert adopt(fleet, "forger") == 0
        said = capsys.readouterr().out
        assert adopt(fleet, "forger", "--open", "--reason", "r", "--dry-run") == 1
        refused = capsys.readouterr().err
        assert (said.count("\n"), refused.count("\n")) == (2, 1)  # the node and the sum; the refusal
        for text in (said, refused):
            quoted = printable(provider_id) if text is said else " ".join(printable(provider_id).split())
            assert f"no Machine has its provider ID {quoted}: make one" in text
            assert all(one == "\n" or one.isprintable() for one in text)
    finally:
        fleet.client.delete(f"{NODES}/forger")


def test_a_machine_is_opened_on_record_with_a_token_for_it_alone(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    old(fleet, "dead")
    assert adopt(fleet, "dead", "--open", "--reason", "its certificate ended", "--yes", "-o", "json") == 0
    said = capsys.readouterr()
    made: JsonMap = json.loads(said.out)
    token = text_at(made, "token")
    assert token not in said.err
    [ledger] = [one for one in fleet.client.list(LEDGERS) if text_at(one, "spec", "machineName") == "dead"]
    [entry] = maps_at(ledger, "spec", "resets")
    assert entry["reason"] == "its certificate ended"
    assert parse_attestation(ledger).was_reset
    assert parse_attestation(ledger).node_name == "dead"
    [event] = fleet.events("AttestationOpened")
    assert "its certificate ended" in text_at(event, "message")
    command = made["command"]
    assert isinstance(command, list)
    assert command[-1] == "--replace-kubeconfig"
    assert command[command.index("--provider") + 1] == "tpm"
    stored = map_at(fleet.client.get(f"{SECRETS}/bootstrap-token-{token.partition('.')[0]}"), "data")
    groups = base64.b64decode(text_at(stored, "auth-extra-groups")).decode().split(",")
    assert bound_group("fleet/blue", "metal://blue/dead") in groups


def test_a_cluster_out_of_reach_is_told_beside_what_was_found(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/blue-kubeconfig"
    good = fleet.client.get(path)
    fleet.client.patch(path, {"data": {"value": base64.b64encode(b"x: [").decode()}})
    try:
        assert adopt(fleet, "--all") == 3
        assert "fleet/blue cannot be reached" in capsys.readouterr().err
    finally:
        fleet.client.patch(path, {"data": good["data"]})
