"""A policy is simulated against what is on record: who would be refused and why, and what no record tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from attested_fleet import LEDGERS, NAMESPACE, PINS, AttestedFleet

from nodeattest_cli.main import main
from nodeattest_parsing.objects import rfc3339
from nodeattest_sandbox import fleet as sandbox_fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, maps_at, text_at
from nodeattest_sandbox.control_plane import start_sandbox

OLD, NEW = "0e" * 32, "1f" * 32
OWN = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}"
CONTOSO = ("--installed", "contoso-elsewhere")
POLICIES = f"{OWN}/nodeattestationpolicies"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[AttestedFleet]:
    with start_sandbox(tmp_path, name="both") as plane:
        yield AttestedFleet.build(plane, "blue", "green")


def policy(name: str = "fleet", **spec: JsonValue) -> JsonMap:
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"authorizedAttestors": ["tpm"], "tpm": {"trustOnFirstUse": True}, **spec},
    }


def allowing(**values: JsonValue) -> JsonMap:
    """Make the section tpm of a policy that lists values of registers."""
    pcrs: JsonMap = {"values": {pcr.removeprefix("p"): value for pcr, value in values.items()}}
    return {"trustOnFirstUse": True, "pcrs": pcrs}


def booted(fleet: AttestedFleet, ledger: JsonMap, **pcrs: str) -> JsonMap:
    """Record what a machine booted."""
    values = {pcr.removeprefix("p"): value for pcr, value in pcrs.items()}
    boot: JsonMap = {"clock": 77, "resetCount": 3, "bank": "sha256", "pcrs": cast("JsonMap", values)}
    return fleet.client.patch(f"{LEDGERS}/{text_at(ledger, 'metadata', 'name')}", {"spec": {"boot": boot}})


def simulated(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str], *words: str, code: int, documents: list[JsonMap] | None
) -> str:
    """Run the command; returns what it printed."""
    arguments = ["policy", "simulate", *fleet.access, *words]
    if documents is not None:
        path = fleet.plane.admin_kubeconfig.parent / "policy.yaml"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
        arguments += ["-f", str(path)]
    ended = main(arguments)
    said = capsys.readouterr()
    assert ended == code, said.out + said.err
    return said.out


def report(
    fleet: AttestedFleet,
    capsys: pytest.CaptureFixture[str],
    *documents: JsonMap,
    code: int,
    words: tuple[str, ...] = (),
) -> JsonMap:
    printed = simulated(fleet, capsys, "-o", "json", *words, code=code, documents=list(documents))
    return cast("JsonMap", json.loads(printed))


def row(found: JsonMap, machine: str) -> JsonMap:
    return next(one for one in maps_at(found, "machines") if one["machine"] == machine)


def test_a_register_value_of_before_a_roll_out_is_refused_and_the_summary_says_why(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.client.create(POLICIES, policy())
    for number in range(3):
        booted(fleet, fleet.machine(f"old-{number}"), p0=OLD, p7=OLD)
    booted(fleet, fleet.machine("new-0"), p0=NEW, p7=OLD)
    printed = simulated(fleet, capsys, code=1, documents=[policy(tpm=allowing(p0=[NEW]))])
    lines = printed.splitlines()
    assert lines[0].startswith("CLUSTER")
    assert [line.split()[1] for line in lines[1:4]] == ["old-0", "old-1", "old-2"]
    assert "new-0" not in printed  # who passes is shown by -o json
    assert "3 of 4 machines would be refused at their next renewal; 0 unknown" in printed
    assert "  3 refused: PCRValueNotAllowed: PCR value 0" in printed

    both = simulated(fleet, capsys, code=0, documents=[policy(tpm=allowing(p0=[OLD, NEW]))])
    assert both == "0 of 4 machines would be refused at their next renewal; 0 unknown\n"


def test_what_no_record_holds_is_unknown_and_no_pass(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.machine("unquoted")
    fleet.machine("cloudy", provider="aws")
    fleet.machine("exotic", provider="contoso-elsewhere")
    listed: list[JsonValue] = ["tpm", "aws", "contoso-elsewhere"]
    logged: JsonMap = {**allowing(p0=[OLD]), "eventLog": "Require"}
    aws: JsonMap = {"accounts": ["123456789012"], "regions": ["eu-west-1"], "roles": ["nodes"]}
    found = report(fleet, capsys, policy(authorizedAttestors=listed, tpm=logged, aws=aws), code=1, words=CONTOSO)
    assert row(found, "cloudy")["reason"] == "ProviderIDInvalid"  # no instance of AWS has such a provider ID
    unquoted = row(found, "unquoted")
    assert unquoted["outcome"] == "unknown"
    assert "PCR 0 is not on record" in text_at(unquoted, "message")
    assert "event logs are not stored" in text_at(unquoted, "message")
    exotic = row(found, "exotic")
    assert (exotic["outcome"], "not installed here" in text_at(exotic, "message")) == ("unknown", True)
    assert (found["total"], found["refused"], found["unknown"], found["passes"]) == (3, 1, 2, 0)


def test_attestor_name_and_serving_certificate_are_held_to_the_policy(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = fleet.machine("m-0")
    assert row(report(fleet, capsys, policy(authorizedAttestors=["challenge"]), code=1), "m-0")["reason"] == (
        "AttestorNotAuthorized"
    )
    entry: JsonMap = {"providerID": "metal://blue/other", "sha256": text_at(PINS, "tpm.ek"), "nodeName": "m-0"}
    taken = policy(tpm={"trustOnFirstUse": True, "endorsementKeys": [entry]})
    assert row(report(fleet, capsys, taken, code=1), "m-0")["reason"] == "NodeNameTaken"

    refuses = policy(serving={"attested": "Refuse"})
    report(fleet, capsys, refuses, code=0)
    (client,) = maps_at(fleet.spec(ledger), "issued")
    serving: JsonMap = {**client, "purpose": "serving", "serial": "20", "spki": "sha256:" + "6" * 64}
    name = text_at(ledger, "metadata", "name")
    fleet.client.patch(f"{LEDGERS}/{name}", {"spec": {"issued": [client, serving]}})
    assert row(report(fleet, capsys, refuses, code=1), "m-0")["reason"] == "ServingNotAllowed"


def test_the_infrastructures_word_is_read_and_unread_it_is_unknown(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.machine("m-0")
    strict = policy(tpm={})
    denied = row(report(fleet, capsys, strict, code=1), "m-0")
    assert denied["reason"] == "EndorsementKeyUntrusted"
    rules: list[JsonMap] = [
        {
            "apiGroups": ["attestation.cluster.x-k8s.io", "cluster.x-k8s.io"],
            "resources": ["*"],
            "verbs": ["get", "list"],
        }
    ]
    kubeconfig = fleet.grant("reader", *rules)
    path = fleet.plane.admin_kubeconfig.parent / "strict.yaml"
    path.write_text(json.dumps(strict))
    ended = main(["policy", "simulate", "--kubeconfig", str(kubeconfig), "-f", str(path), "-o", "json"])
    hidden = row(cast("JsonMap", json.loads(capsys.readouterr().out)), "m-0")
    assert (ended, hidden["outcome"]) == (0, "unknown")
    assert "not given: DevMachine m-0" in text_at(hidden, "message")


def test_clusters_that_come_in_and_go_out_are_named(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]) -> None:
    clusters = f"/apis/cluster.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/clusters"
    fleet.client.patch(f"{clusters}/blue", {"metadata": {"labels": {"tier": "gold"}}})
    fleet.client.patch(f"{clusters}/green", {"metadata": {"labels": {"tier": "silver"}}})
    fleet.client.create(POLICIES, policy(clusterSelector={"matchLabels": {"tier": "gold"}}))
    fleet.machine("b-0")
    fleet.machine("g-0", cluster="green")
    moved = policy(clusterSelector={"matchLabels": {"tier": "silver"}})
    found = report(fleet, capsys, moved, code=1)
    changes = {text_at(one, "cluster"): one["policy"] for one in maps_at(found, "clusters")}
    assert changes == {"blue": None, "green": "fleet"}
    assert (row(found, "b-0")["reason"], row(found, "g-0")["outcome"]) == ("PolicyMissing", "passes")
    only = report(fleet, capsys, moved, code=0, words=("--cluster", "green"))
    assert [one["machine"] for one in maps_at(only, "machines")] == ["g-0"]

    stray = policy("stray")
    said = simulated(fleet, capsys, "--cluster", "blue", code=1, documents=[stray])
    assert "got fleet, stray" in said
    nowhere = policy("nowhere", clusterSelector={"matchLabels": {"tier": "none"}})
    simulated(fleet, capsys, code=1, documents=[nowhere])


def test_only_renewals_are_simulated(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.machine("joined")
    sandbox_fleet.create_machine(
        fleet.client, "fresh", cluster=fleet.clusters["blue"], provider_id="metal://blue/fresh"
    )
    ended = fleet.machine("ended")
    (entry,) = maps_at(fleet.spec(ended), "issued")
    past = {**entry, "notAfter": rfc3339(datetime.now(UTC) - timedelta(hours=1))}
    fleet.client.patch(f"{LEDGERS}/{text_at(ended, 'metadata', 'name')}", {"spec": {"issued": [past]}})
    found = report(fleet, capsys, policy(), code=0)
    assert [one["machine"] for one in maps_at(found, "machines")] == ["joined"]


def test_an_invalid_policy_and_another_namespace_are_refused(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated(fleet, capsys, code=1, documents=[policy(certificateLifetime="1s")])
    elsewhere: JsonMap = {**policy(), "metadata": {"name": "fleet", "namespace": "elsewhere"}}
    simulated(fleet, capsys, code=2, documents=[elsewhere])
    simulated(fleet, capsys, code=2, documents=[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}])
