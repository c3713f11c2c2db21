"""``machines reset``, ``rejoin`` and ``adopt``: shown and agreed to, on record, and a token for one machine alone."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from attested_fleet import LEDGERS, NAMESPACE, PINS, SECRETS, SPKI, AttestedFleet

from nodeattest_cli.main import main
from nodeattest_controller import manifests
from nodeattest_controller.model.attestation_object import parse_attestation
from nodeattest_controller.model.kubeadm_config import bound_group
from nodeattest_parsing.objects import moment
from nodeattest_providers.identifiers import printable
from nodeattest_sandbox import fleet as sandbox_fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at, texts_at

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
MACHINES = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines"
NODES = "/api/v1/nodes"
KUBEADM_GROUP = "system:bootstrappers:kubeadm:default-node-token"


def run(fleet: AttestedFleet, *words: str) -> int:
    return main(["machines", *words, *fleet.access])


def reset(fleet: AttestedFleet, *words: str, reason: str = "new mainboard") -> int:
    return run(fleet, "reset", *words, "--reason", reason)


def secret_of(fleet: AttestedFleet, token: str) -> dict[str, str]:
    stored = map_at(fleet.client.get(f"{SECRETS}/bootstrap-token-{token.partition('.')[0]}"), "data")
    return {key: base64.b64decode(str(value)).decode() for key, value in stored.items()}


def test_a_reset_forgets_the_pins_keeps_the_keys_and_goes_on_record(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = fleet.machine("plain")
    assert reset(fleet, "plain", "--yes", reason="ticket 4711") == 0
    said, spec = capsys.readouterr().out, fleet.spec(ledger)
    assert not {"fingerprints", "boot", "issued", "expires"} & set(spec)
    assert [text_at(key, "spki") for key in maps_at(spec, "retiredKeys")] == [SPKI]
    [entry] = maps_at(spec, "resets")
    assert (text_at(entry, "reason"), entry["fingerprints"]) == ("ticket 4711", PINS)
    assert text_at(entry, "by") in said
    assert text_at(fleet.ledger(ledger), "metadata", "labels", "team") == "metal"
    [event] = fleet.events("AttestationReset")
    [owner] = maps_at(ledger, "metadata", "ownerReferences")
    subject = map_at(event, "involvedObject")
    assert (subject["kind"], subject["name"], subject["uid"]) == ("Machine", "plain", owner["uid"])
    assert text_at(event, "message") == f"reset by {text_at(entry, 'by')}: ticket 4711"


def test_a_machine_is_found_by_its_name_its_ledgers_and_its_provider_id(fleet: AttestedFleet) -> None:
    ledger = fleet.machine("found")
    for name in ("found", "metal://blue/found", text_at(ledger, "metadata", "name")):
        assert reset(fleet, name, "--yes") == 0
    assert len(list(maps_at(fleet.spec(ledger), "resets"))) == 3


def test_what_is_cleared_is_shown_and_a_no_changes_nothing(
    fleet: AttestedFleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = fleet.machine("asked")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert reset(fleet, "asked") == 1
    said = capsys.readouterr().out
    for word in ("asked of fleet/blue (metal://blue/asked)", *PINS, "reset 3, 77 ms", "1f", "not revoked"):
        assert word in said
    assert "nothing was changed" in said
    assert fleet.ledger(ledger) == ledger
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert reset(fleet, "asked") == 0
    assert "fingerprints" not in fleet.spec(ledger)


def test_a_name_of_two_machines_lists_both_and_resets_neither(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    first = fleet.machine("twin")
    # Cluster API has one Machine of a name in a namespace; a pool gives its instances one.
    spec: JsonMap = {**map_at(first, "spec"), "providerID": "metal://blue/twin-2"}
    second = fleet.client.create(LEDGERS, {**first, "metadata": {"name": "another"}, "spec": spec})
    assert reset(fleet, "twin", "--yes") == 2
    said = capsys.readouterr().err
    assert "metal://blue/twin)" in said
    assert "metal://blue/twin-2)" in said
    assert (fleet.ledger(first), fleet.ledger(second)) == (first, second)
    assert reset(fleet, "twin", "--yes", "--cluster", "green") == 1
    assert reset(fleet, "another", "--yes") == 0


class Meddler:
    """Changes the ledger between what the operator saw and what is written: stands for the terminal."""

    def __init__(self, fleet: AttestedFleet, ledger: JsonMap, spec: JsonMap) -> None:
        self._change = lambda: fleet.client.patch(f"{LEDGERS}/{text_at(ledger, 'metadata', 'name')}", {"spec": spec})

    def readline(self, _size: int = -1) -> str:
        self._change()
        return "y\n"


def test_a_ledger_that_was_written_after_it_was_shown_is_not_reset(
    fleet: AttestedFleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = fleet.machine("busy")
    monkeypatch.setattr("sys.stdin", Meddler(fleet, ledger, {"signerName": "meanwhile"}))
    assert reset(fleet, "busy") == 1
    assert "changed meanwhile" in capsys.readouterr().err
    assert fleet.spec(ledger) == {**map_at(ledger, "spec"), "signerName": "meanwhile"}


def test_the_shipped_operator_role_is_enough(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]) -> None:
    roles = cast("list[JsonMap]", manifests.objects("rbac"))
    [role] = [one for one in roles if text_at(one, "metadata", "name") == "nodeattest:operator"]
    kubeconfig, ledger = fleet.grant("olga", *maps_at(role, "rules")), fleet.machine("role")
    words = ["machines", "reset", "role", "--reason", "r", "--yes", "--kubeconfig", str(kubeconfig), "-n", NAMESPACE]
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    assert text_at(next(maps_at(fleet.spec(ledger), "resets")), "by") == "olga"


def test_the_command_is_complete_and_the_token_is_shown_once(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.machine("late")
    assert run(fleet, "rejoin", "late", "--ttl", "10m") == 0
    said = capsys.readouterr().out
    [token] = [line.strip() for line in said.splitlines() if len(line.strip()) == 23 and line.strip()[6] == "."]
    assert said.count(token.partition(".")[2]) == 1
    command = said.splitlines()[-1].split()
    assert command[:2] == ["kubelet-authenticator", "join"]
    options = dict(zip(command[2::2], command[3::2], strict=True))
    assert options["--server"] == fleet.plane.server
    wanted = {"--provider": "tpm", "--node-name": "late", "--provider-id": "metal://blue/late", "--token-file": "-"}
    assert wanted.items() <= options.items()
    data = secret_of(fleet, token)
    ends = moment(data["expiration"])
    assert ends is not None
    assert abs(ends - datetime.now(UTC) - timedelta(minutes=10)) < timedelta(seconds=30)
    assert data["usage-bootstrap-authentication"] == "true"
    assert "usage-bootstrap-signing" not in data
    assert bound_group("fleet/blue", "metal://blue/late") in data["auth-extra-groups"].split(",")


def bind(fleet: AttestedFleet, name: str, role: str) -> None:
    api = "rbac.authorization.k8s.io"
    body: JsonMap = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": api, "kind": "Group", "name": "system:bootstrappers"}],
    }
    fleet.client.create(BINDINGS, body)


def test_kubeadms_group_is_given_only_where_nothing_else_lets_tokens_ask(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.machine("grouped")
    approves, ours = "kubeadm:node-autoapprove-bootstrap", "nodeattest:node-bootstrapper"
    groups: list[str] = []
    warned: list[bool] = []
    for name, role in (
        ("", ""),
        (approves, "system:certificates.k8s.io:certificatesigningrequests:nodeclient"),
        (ours, "system:node-bootstrapper"),
    ):
        if name:
            bind(fleet, name, role)
        assert run(fleet, "rejoin", "grouped", "-o", "json") == 0
        said = capsys.readouterr()
        groups.append(secret_of(fleet, json.loads(said.out)["token"])["auth-extra-groups"])
        warned.append(approves in said.err)
    own = bound_group("fleet/blue", "metal://blue/grouped")
    assert (groups, warned) == ([f"{own},{KUBEADM_GROUP}"] * 2 + [own], [False, True, False])
    for name in (approves, ours):
        fleet.client.delete(f"{BINDINGS}/{name}")


@pytest.mark.parametrize("provider", ["insecure", "challenge"])
def test_a_machine_that_joins_once_is_reset_first(
    fleet: AttestedFleet, provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.machine(f"once-{provider}", provider=provider)
    assert run(fleet, "rejoin", f"once-{provider}") == 1
    assert "nodeattest machines reset" in capsys.readouterr().err
    assert reset(fleet, f"once-{provider}", "--yes") == 0
    assert run(fleet, "rejoin", f"once-{provider}") == 0


def test_a_machine_that_is_being_deleted_or_was_made_anew_gets_no_token(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.machine("leaving")
    fleet.client.patch(f"{MACHINES}/leaving", {"metadata": {"finalizers": ["tests.example/hold"]}})
    fleet.client.delete(f"{MACHINES}/leaving")
    name = text_at(fleet.machine("anew"), "metadata", "name")
    owner: JsonMap = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": "anew", "uid": "another"}
    fleet.client.patch(f"{LEDGERS}/{name}", {"metadata": {"ownerReferences": [owner]}})
    before = fleet.client.list(SECRETS)
    for machine in ("leaving", "anew"):
        assert run(fleet, "rejoin", machine) == 1
        assert "being deleted" in capsys.readouterr().err
    assert fleet.client.list(SECRETS) == before


def register(fleet: AttestedFleet, name: str, provider_id: str) -> JsonMap:
    """Create a Node that is Ready."""
    spec: JsonMap = {"providerID": provider_id}
    node = fleet.client.create(NODES, {"metadata": {"name": name}, "spec": spec})
    fleet.client.patch(f"{NODES}/{name}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    return node


def old(fleet: AttestedFleet, name: str) -> None:
    """Make a Machine whose node joined without attestation."""
    uid = text_at(register(fleet, name, f"metal://blue/{name}"), "metadata", "uid")
    node: JsonMap = {"kind": "Node", "name": name, "uid": uid}
    cluster = fleet.clusters["blue"]
    sandbox_fleet.create_machine(fleet.client, name, cluster=cluster, provider_id=f"metal://blue/{name}", node=node)


@pytest.fixture(scope="module")
def aged(fleet: AttestedFleet) -> AttestedFleet:
    """The fleet with a node that attested, one that joined without, and one of no Machine."""
    fleet.machine("attested")
    register(fleet, "attested", "metal://blue/attested")
    old(fleet, "veteran")
    register(fleet, "stray", "metal://nowhere/stray")
    fleet.authorize("tpm")
    return fleet


def adopt(fleet: AttestedFleet, *words: str) -> int:
    return run(fleet, "adopt", "--cluster", "blue", *words)


def listed(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, JsonMap]:
    assert adopt(fleet, *(words or ("--all",)), "-o", "json") == 0
    document: JsonMap = json.loads(capsys.readouterr().out)
    return {text_at(one, "node"): one for one in maps_at(document, "nodes")}


def test_nodes_outside_of_the_ledger_are_listed_each_with_what_to_run(
    aged: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    found = listed(aged, capsys)
    assert found.keys() == {"veteran", "stray"}
    words = ["kubelet-authenticator", "adopt", "--provider", "tpm", "--provider-id", "metal://blue/veteran"]
    assert found["veteran"]["command"] == words
    assert (found["veteran"]["todo"], found["stray"]["todo"]) == ("adopt", "none")
    assert "no Machine has its provider ID metal://nowhere/stray" in text_at(found["stray"], "says")
    assert adopt(aged, "--all") == 0
    said = capsys.readouterr().out
    assert "2 of 3 nodes are not in the ledger" in said
    assert " ".join(words) in said


def test_where_the_policy_proves_nothing_or_names_several_it_is_said(
    aged: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    aged.authorize("insecure")
    assert listed(aged, capsys, "veteran")["veteran"]["todo"] == "open"
    aged.authorize("tpm", "aws")
    assert "PROVIDER is one of aws, tpm" in text_at(listed(aged, capsys, "veteran")["veteran"], "says")
    assert adopt(aged, "veteran", "--open", "--reason", "r", "--dry-run") == 2
    assert "--provider: the policy names aws, tpm" in capsys.readouterr().err
    aged.authorize("tpm")


@pytest.mark.parametrize(
    ("code", "words", "says"),
    [
        (2, (), "expected names of Machines, or --all"),
        (2, ("veteran", "--all"), "expected names of Machines, or --all"),
        (1, ("attested",), "no node attested is outside of the ledger"),
        (2, ("veteran", "stray", "--open", "--reason", "r"), "--open opens one Machine"),
        (2, ("veteran", "--open"), "--reason: expected"),
        (2, ("veteran", "--open", "--reason", "r", "--ttl", "25h"), "--ttl: expected"),
        (2, ("veteran", "--open", "--reason", "r", "--provider", "aws"), "expected one of the policy's tpm"),
        (1, ("stray", "--open", "--reason", "r"), "no Machine has its provider ID"),
        (1, ("--all", "--cluster", "red"), "no Cluster or ClusterRecord red"),
    ],
)
def test_what_cannot_be_is_one_clear_line_and_changes_nothing(
    aged: AttestedFleet, code: int, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = aged.client.list(LEDGERS), aged.client.list(SECRETS)
    assert adopt(aged, *words) == code
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert (aged.client.list(LEDGERS), aged.client.list(SECRETS)) == before


FORGED = "metal://blue/x\x1b[2K\rfleet/blue node good: fine\n  kubelet-authenticator adopt --provider insecure"
PADDED = "metal://blue/y" + " " * 20 + "fleet/blue node good: fine"


@pytest.mark.parametrize("provider_id", [FORGED, PADDED, "metal://blue/\N{RIGHT-TO-LEFT OVERRIDE}z"])
def test_a_nodes_own_words_forge_no_line_and_move_no_cursor(
    aged: AttestedFleet, capsys: pytest.CaptureFixture[str], provider_id: str
) -> None:
    register(aged, "forger", provider_id)
    assert listed(aged, capsys, "forger")["forger"]["providerID"] == provider_id
    assert adopt(aged, "forger") == 0
    said = capsys.readouterr().out
    assert adopt(aged, "forger", "--open", "--reason", "r", "--dry-run") == 1
    refused = capsys.readouterr().err
    aged.client.delete(f"{NODES}/forger")
    assert (said.count("\n"), refused.count("\n")) == (2, 1)  # the node and the sum; the refusal
    for text in (said, refused):
        quoted = printable(provider_id) if text is said else " ".join(printable(provider_id).split())
        assert f"no Machine has its provider ID {quoted}: make one" in text
        assert all(one == "\n" or one.isprintable() for one in text)


def test_a_machine_is_opened_on_record_with_a_token_for_it_alone(
    aged: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    old(aged, "dead")
    assert adopt(aged, "dead", "--open", "--reason", "its certificate ended", "--yes", "-o", "json") == 0
    said = capsys.readouterr()
    made: JsonMap = json.loads(said.out)
    token = text_at(made, "token")
    assert token not in said.err
    [ledger] = [one for one in aged.client.list(LEDGERS) if text_at(one, "spec", "machineName") == "dead"]
    [entry] = maps_at(ledger, "spec", "resets")
    assert entry["reason"] == "its certificate ended"
    assert parse_attestation(ledger).was_reset
    assert parse_attestation(ledger).node_name == "dead"
    [event] = aged.events("AttestationOpened")
    assert "its certificate ended" in text_at(event, "message")
    command = list(texts_at(made, "command"))
    assert command[-1] == "--replace-kubeconfig"
    assert command[command.index("--provider") + 1] == "tpm"
    assert bound_group("fleet/blue", "metal://blue/dead") in secret_of(aged, token)["auth-extra-groups"].split(",")


def test_a_cluster_out_of_reach_is_told_beside_what_was_found(
    aged: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/green-kubeconfig"
    broken: JsonValue = base64.b64encode(b"x: [").decode()
    aged.client.patch(path, {"data": {"value": broken}})
    assert run(aged, "adopt", "--all") == 3
    said = capsys.readouterr()
    assert "fleet/green cannot be reached" in said.err
    assert "veteran" in said.out
