"""Register values learned from the ledger: merged with the policy's, never fewer, and a policy that is valid."""

from __future__ import annotations

import pytest
import yaml
from attested_fleet import LEDGERS, POLICIES, AttestedFleet

from nodeattest_cli.main import main
from nodeattest_cli.output import UserError
from nodeattest_cli.policy.check import problems
from nodeattest_cli.policy.learn import BootRecord, propose, registers_from_attestation
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.config import TpmPolicy, parse_policy
from nodeattest_sandbox.apiserver.jsonvalue import text_at

OLD, NEW, OTHER = "0e" * 32, "1" * 64, "ab" * 32


def machine(name: str, *, bank: str = "sha256", **pcrs: str) -> BootRecord:
    values = {int(pcr.removeprefix("p")): value for pcr, value in pcrs.items()}
    return BootRecord(cluster="blue", machine=name, node=f"node-{name}", bank=bank, pcrs=values)


def policy(**pcrs: JsonValue) -> TpmPolicy:
    return parse_policy({"pcrs": pcrs})


def test_values_of_the_policy_stay_beside_those_of_the_machines() -> None:
    made = propose([machine("a", p0=OLD, p7=OTHER), machine("b", p0=NEW, p7=OTHER)], policy(values={"0": [OLD]}))
    assert (made.bank, list(made.selection)) == ("sha256", [0, 7])
    assert made.values == {0: sorted((OLD, NEW)), 7: [OTHER]}
    assert made.new == {0: ["b"], 7: ["a", "b"]}


@pytest.mark.parametrize(
    ("machines", "wanted", "said"),
    [
        ([machine("a")], None, "a has no register values"),
        ([machine("a", p0=OLD)], policy(bank="sha384"), "expected sha384"),
        ([machine("a", p0=OLD), machine("b", p0="ab" * 48, bank="sha384")], None, "b quoted the bank sha384"),
    ],
)
def test_what_cannot_be_merged_is_said(machines: list[BootRecord], wanted: TpmPolicy | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        propose(machines, wanted)


@pytest.mark.parametrize(
    ("bank", "value"),
    [
        ("sha1", "ab" * 20),
        ("sha256", "AB" * 32),
        ("sha256", "ab" * 32 + "\n"),
        ("sha256", "ab" * 48),
        ("sha256\nspec: {}", "ab" * 32),
    ],
)
def test_a_record_that_no_quote_can_have_made_is_not_learned_from(bank: str, value: str) -> None:
    boot: JsonObject = {"clock": 1, "resetCount": 1, "bank": bank, "pcrs": {"0": value}}
    with pytest.raises(UserError, match="was it edited"):
        registers_from_attestation({"kind": "MachineAttestation", "spec": {"machineName": "a", "boot": boot}})


def record(fleet: AttestedFleet, name: str, *, cluster: str = "blue", issued: bool = False, **pcrs: str) -> None:
    """Record what a machine quoted."""
    path = f"{LEDGERS}/{text_at(fleet.machine(name, cluster=cluster, issued=issued), 'metadata', 'name')}"
    values: JsonObject = {pcr.removeprefix("p"): value for pcr, value in pcrs.items()}
    boot: JsonObject = {"clock": 1, "resetCount": 1, "bank": "sha256", "pcrs": values}
    fleet.client.patch(path, {"spec": {"boot": boot if pcrs else None}})


def learned(output: str) -> JsonObject:
    document: JsonObject = yaml.safe_load(output)
    return mapping(document, "spec", "tpm", "pcrs")


def test_a_policy_is_proposed_from_a_management_cluster(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet, "a", p0=OLD, p7=OTHER)
    record(fleet, "b", p0=NEW, p7=OTHER)
    record(fleet, "c")
    record(fleet, "unused", p0="0" * 64, p7=OTHER)
    record(fleet, "g", cluster="green", p0=OTHER)

    def learn(*words: str, code: int = 0, access: list[str] | None = None) -> str:
        assert main(["policy", "learn", *words, *(access or [*fleet.access, "--cluster", "blue"])]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    said = learn("a")
    assert learned(said) == {"bank": "sha256", "selection": [0, 7], "values": {"0": [OLD], "7": [OTHER]}}
    assert "# Learning trusts what these machines booted." in said
    spec: JsonObject = {"authorizedAttestors": ["tpm"], "tpm": {"eventLog": "Require", "pcrs": learned(said)}}
    head: JsonObject = {"apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeAttestationPolicy"}
    document: JsonObject = {**head, "metadata": {"name": "p"}, "spec": spec}
    assert list(problems(document)) == []
    fleet.client.create(POLICIES, document)
    said = learn("b")
    assert learned(said)["values"] == {"0": sorted((OLD, NEW)), "7": [OTHER]}
    assert "# PCR 0: 2 allowed, new for b\n" in said
    assert "# PCR 7: 1 allowed\n" in said
    said = learn("--all")
    assert learned(said)["values"] == {"0": sorted(("0" * 64, OLD, NEW)), "7": [OTHER]}
    assert said.count("# PCR 0: all zero: nothing was measured into it") == 1
    for code, words, problem in (
        (2, (), "expected names of machines, or --all"),
        (2, ("a", "--all"), "expected names of machines, or --all"),
        (1, ("z",), "no machine z is on record"),
        (1, ("c",), "c has no register values"),
    ):
        assert problem in learn(*words, code=code)
    assert "set --cluster" in learn("--all", code=2, access=fleet.access)
    assert "no Cluster or ClusterRecord none" in learn("--all", code=1, access=[*fleet.access, "--cluster", "none"])
    fleet.client.create(POLICIES, {**head, "metadata": {"name": "rival"}, "spec": {"authorizedAttestors": ["tpm"]}})
    assert "expected one NodeAttestationPolicy" in learn("b", code=1)
