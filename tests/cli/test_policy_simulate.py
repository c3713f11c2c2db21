"""A policy is simulated against what is on record: who would be refused and why, and what no record tells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from attested_fleet import LEDGERS, NAMESPACE, PINS, POLICIES, AttestedFleet

from nodeattest_cli.main import main
from nodeattest_parsing.objects import rfc3339
from nodeattest_sandbox import fleet as sandbox_fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, maps_at, text_at
from nodeattest_sandbox.control_plane import start_sandbox

OLD, NEW = "0e" * 32, "1f" * 32
Simulate = Callable[..., str]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[AttestedFleet]:
    with start_sandbox(tmp_path, name="both") as plane:
        yield AttestedFleet.build(plane, "blue", "green")


@pytest.fixture
def simulate(fleet: AttestedFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulate:
    """Simulate policies; returns what the command printed."""

    def run(*documents: JsonMap, code: int, words: tuple[str, ...] = (), access: list[str] | None = None) -> str:
        path = tmp_path / "policy.yaml"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
        ended = main(["policy", "simulate", *(access or fleet.access), "-f", str(path), *words])
        said = capsys.readouterr()
        assert ended == code, said.out + said.err
        return said.out

    return run


def report(simulate: Simulate, *documents: JsonMap, code: int, words: tuple[str, ...] = ()) -> JsonMap:
    return cast("JsonMap", json.loads(simulate(*documents, code=code, words=("-o", "json", *words))))


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


def change(fleet: AttestedFleet, ledger: JsonMap, **spec: JsonValue) -> None:
    fleet.client.patch(f"{LEDGERS}/{text_at(ledger, 'metadata', 'name')}", {"spec": spec})


def booted(fleet: AttestedFleet, ledger: JsonMap, **pcrs: str) -> None:
    """Record what a machine booted."""
    values: JsonMap = {pcr.removeprefix("p"): value for pcr, value in pcrs.items()}
    change(fleet, ledger, boot={"clock": 77, "resetCount": 3, "bank": "sha256", "pcrs": values})


def row(found: JsonMap, machine: str) -> JsonMap:
    return next(one for one in maps_at(found, "machines") if one["machine"] == machine)


def test_a_register_value_of_before_a_roll_out_is_refused_and_the_summary_says_why(
    fleet: AttestedFleet, simulate: Simulate
) -> None:
    fleet.client.create(POLICIES, policy())
    for number in range(3):
        booted(fleet, fleet.machine(f"old-{number}"), p0=OLD, p7=OLD)
    booted(fleet, fleet.machine("new-0"), p0=NEW, p7=OLD)
    printed = simulate(policy(tpm=allowing(p0=[NEW])), code=1)
    lines = printed.splitlines()
    assert lines[0].startswith("CLUSTER")
    assert [line.split()[1] for line in lines[1:4]] == ["old-0", "old-1", "old-2"]
    assert "new-0" not in printed  # who passes is shown by -o json
    assert "3 of 4 machines would be refused at their next renewal; 0 unknown" in printed
    assert "  3 refused: PCRValueNotAllowed: PCR value 0" in printed
    both = simulate(policy(tpm=allowing(p0=[OLD, NEW])), code=0)
    assert both == "0 of 4 machines would be refused at their next renewal; 0 unknown\n"


def test_what_no_record_holds_is_unknown_and_no_pass(fleet: AttestedFleet, simulate: Simulate) -> None:
    fleet.machine("unquoted")
    fleet.machine("cloudy", provider="aws")
    fleet.machine("exotic", provider="contoso-elsewhere")
    logged: JsonMap = {**allowing(p0=[OLD]), "eventLog": "Require"}
    aws: JsonMap = {"accounts": ["123456789012"], "regions": ["eu-west-1"], "roles": ["nodes"]}
    given = policy(authorizedAttestors=["tpm", "aws", "contoso-elsewhere"], tpm=logged, aws=aws)
    found = report(simulate, given, code=1, words=("--installed", "contoso-elsewhere"))
    assert row(found, "cloudy")["reason"] == "ProviderIDInvalid"  # no instance of AWS has such a provider ID
    for name, words in (
        ("unquoted", ("PCR 0 is not on record", "event logs are not stored")),
        ("exotic", ("not installed here",)),
    ):
        assert row(found, name)["outcome"] == "unknown"
        assert all(word in text_at(row(found, name), "message") for word in words)
    assert (found["total"], found["refused"], found["unknown"], found["passes"]) == (3, 1, 2, 0)


def test_attestor_name_and_serving_certificate_are_held_to_the_policy(fleet: AttestedFleet, simulate: Simulate) -> None:
    ledger = fleet.machine("m-0")
    entry: JsonMap = {"providerID": "metal://blue/other", "sha256": text_at(PINS, "tpm.ek"), "nodeName": "m-0"}
    refuses = policy(serving={"attested": "Refuse"})
    report(simulate, refuses, code=0)
    (client,) = maps_at(fleet.spec(ledger), "issued")
    change(
        fleet, ledger, issued=[client, {**client, "purpose": "serving", "serial": "20", "spki": "sha256:" + "6" * 64}]
    )
    for given, reason in (
        (policy(authorizedAttestors=["challenge"]), "AttestorNotAuthorized"),
        (policy(tpm={"trustOnFirstUse": True, "endorsementKeys": [entry]}), "NodeNameTaken"),
        (refuses, "ServingNotAllowed"),
    ):
        assert row(report(simulate, given, code=1), "m-0")["reason"] == reason


def test_the_infrastructures_word_is_read_and_unread_it_is_unknown(fleet: AttestedFleet, simulate: Simulate) -> None:
    fleet.machine("m-0")
    strict = policy(tpm={})
    assert row(report(simulate, strict, code=1), "m-0")["reason"] == "EndorsementKeyUntrusted"
    groups: list[JsonValue] = ["attestation.cluster.x-k8s.io", "cluster.x-k8s.io"]
    kubeconfig = fleet.grant("reader", {"apiGroups": groups, "resources": ["*"], "verbs": ["get", "list"]})
    said = simulate(strict, code=0, words=("-o", "json"), access=["--kubeconfig", str(kubeconfig)])
    hidden = row(cast("JsonMap", json.loads(said)), "m-0")
    assert hidden["outcome"] == "unknown"
    assert "not given: DevMachine m-0" in text_at(hidden, "message")


def test_clusters_that_come_in_and_go_out_are_named(fleet: AttestedFleet, simulate: Simulate) -> None:
    clusters = f"/apis/cluster.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/clusters"
    for cluster, tier in (("blue", "gold"), ("green", "silver")):
        fleet.client.patch(f"{clusters}/{cluster}", {"metadata": {"labels": {"tier": tier}}})
    fleet.client.create(POLICIES, policy(clusterSelector={"matchLabels": {"tier": "gold"}}))
    fleet.machine("b-0")
    fleet.machine("g-0", cluster="green")
    moved = policy(clusterSelector={"matchLabels": {"tier": "silver"}})
    found = report(simulate, moved, code=1)
    changes = {text_at(one, "cluster"): one["policy"] for one in maps_at(found, "clusters")}
    assert changes == {"blue": None, "green": "fleet"}
    assert (row(found, "b-0")["reason"], row(found, "g-0")["outcome"]) == ("PolicyMissing", "passes")
    only = report(simulate, moved, code=0, words=("--cluster", "green"))
    assert [one["machine"] for one in maps_at(only, "machines")] == ["g-0"]
    assert "got fleet, stray" in simulate(policy("stray"), code=1, words=("--cluster", "blue"))
    simulate(policy("nowhere", clusterSelector={"matchLabels": {"tier": "none"}}), code=1)


def test_only_renewals_are_simulated(fleet: AttestedFleet, simulate: Simulate) -> None:
    fleet.machine("joined")
    blue = fleet.clusters["blue"]
    sandbox_fleet.create_machine(fleet.client, "fresh", cluster=blue, provider_id="metal://blue/fresh")
    ended = fleet.machine("ended")
    (entry,) = maps_at(fleet.spec(ended), "issued")
    change(fleet, ended, issued=[{**entry, "notAfter": rfc3339(datetime.now(UTC) - timedelta(hours=1))}])
    found = report(simulate, policy(), code=0)
    assert [one["machine"] for one in maps_at(found, "machines")] == ["joined"]


def test_an_invalid_policy_and_another_namespace_are_refused(simulate: Simulate) -> None:
    simulate(policy(certificateLifetime="1s"), code=1)
    simulate({**policy(), "metadata": {"name": "fleet", "namespace": "elsewhere"}}, code=2)
    simulate({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}, code=2)
