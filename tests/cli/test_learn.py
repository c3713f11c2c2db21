"""Register values learned from the ledger: merged with the policy's, never fewer, and a policy that is valid."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from nodeattest_cli.errors import UserError
from nodeattest_cli.main import main
from nodeattest_cli.policy.check import problems
from nodeattest_cli.policy.learn import BootRecord, propose, registers_from_attestation
from nodeattest_controller import manifests
from nodeattest_parsing.objects import mapping, rfc3339
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.config import TpmPolicy, parse_policy
from nodeattest_sandbox import fleet
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions

OLD, NEW, OTHER = "0e" * 32, "1" * 64, "ab" * 32
BASE = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet"


def machine(name: str, *, bank: str = "sha256", cluster: str = "blue", **pcrs: str) -> BootRecord:
    values = {int(pcr.removeprefix("p")): value for pcr, value in pcrs.items()}
    return BootRecord(cluster=cluster, machine=name, node=f"node-{name}", bank=bank, pcrs=values)


def policy(**pcrs: JsonValue) -> TpmPolicy:
    return parse_policy({"pcrs": pcrs})


def record(name: str, *, cluster: str = "blue", boot: JsonObject | None = None) -> JsonObject:
    spec: JsonObject = {
        "clusterName": cluster,
        "machineName": name,
        "nodeName": f"node-{name}",
        "provider": "tpm",
        "providerID": f"metal://{name}",
    }
    if boot is not None:
        spec["boot"] = {"clock": 1, "resetCount": 1, **boot}
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineAttestation",
        "metadata": {"name": f"{cluster}-{name}"},
        "spec": spec,
    }


def test_values_of_the_policy_stay_beside_those_of_the_machines() -> None:
    made = propose([machine("a", p0=OLD, p7=OTHER), machine("b", p0=NEW, p7=OTHER)], policy(values={"0": [OLD]}))
    assert made.bank == "sha256"
    assert list(made.selection) == [0, 7]
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
    "boot",
    [
        {"bank": "sha1", "pcrs": {"0": "ab" * 20}},
        {"bank": "sha256", "pcrs": {"0": "AB" * 32}},
        {"bank": "sha256", "pcrs": {"0": "ab" * 32 + "\n"}},
        {"bank": "sha256", "pcrs": {"0": "ab" * 48}},
        {"bank": "sha256\nspec: {}", "pcrs": {"0": "ab" * 32}},
    ],
)
def test_a_record_that_no_quote_can_have_made_is_not_learned_from(boot: JsonObject) -> None:
    with pytest.raises(UserError, match="was it edited"):
        registers_from_attestation(record("a", boot=boot))


def fill(plane: ControlPlane) -> Client:
    client = plane.client()
    install_cluster_api(client)
    install_definitions(client, manifests.crds())
    fleet.create_cluster(client, "blue", namespace="fleet", kubeconfig=b"", ca_certificate=b"", ca_key=b"")
    for body in (
        record("a", boot={"bank": "sha256", "pcrs": {"0": OLD, "7": OTHER}}),
        record("b", boot={"bank": "sha256", "pcrs": {"0": NEW, "7": OTHER}}),
        record("c"),
        record("a", cluster="green", boot={"bank": "sha256", "pcrs": {"0": OTHER}}),
        record("unused", boot={"bank": "sha256", "pcrs": {"0": "0" * 64, "7": OTHER}}),
    ):
        client.create(f"{BASE}/machineattestations", body)
    return client


def joined_under(name: str, attestation: JsonObject) -> JsonObject:
    now = datetime.now(UTC)
    entry: JsonObject = {
        "requestName": "r",
        "requestUID": "u",
        "spki": "sha256:" + "5" * 64,
        "serial": "1f",
        "notBefore": rfc3339(now),
        "notAfter": rfc3339(now + timedelta(days=14)),
        "issuedAt": rfc3339(now),
        "certificate": "pem",
        "policy": name,
    }
    return {**attestation, "spec": {**mapping(attestation, "spec"), "issued": [entry]}}


def learned(output: str) -> JsonObject:
    document: JsonObject = yaml.safe_load(output)
    return mapping(document, "spec", "tpm", "pcrs")


def test_a_policy_is_proposed_from_a_management_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start_sandbox(tmp_path, name="management") as plane:
        client = fill(plane)
        access = ["--kubeconfig", str(plane.admin_kubeconfig), "-n", "fleet", "--cluster", "blue"]
        assert main(["policy", "learn", "a", *access]) == 0
        said = capsys.readouterr().out
        assert learned(said) == {"bank": "sha256", "selection": [0, 7], "values": {"0": [OLD], "7": [OTHER]}}
        assert "# Learning trusts what these machines booted." in said

        spec: JsonObject = {"authorizedAttestors": ["tpm"], "tpm": {"eventLog": "Require", "pcrs": learned(said)}}
        document: JsonObject = {
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "NodeAttestationPolicy",
            "metadata": {"name": "p"},
            "spec": spec,
        }
        assert list(problems(document)) == []
        client.create(f"{BASE}/nodeattestationpolicies", document)
        assert main(["policy", "learn", "node-b", *access]) == 0
        said = capsys.readouterr().out
        assert learned(said)["values"] == {"0": sorted((OLD, NEW)), "7": [OTHER]}
        assert "# PCR 0: 2 allowed, new for b\n" in said
        assert "# PCR 7: 1 allowed\n" in said

        assert main(["policy", "learn", "--all", *access]) == 0
        said = capsys.readouterr().out
        assert learned(said)["values"] == {"0": sorted(("0" * 64, OLD, NEW)), "7": [OTHER]}
        assert said.count("# PCR 0: all zero: nothing was measured into it") == 1
        rival: JsonObject = {**document, "metadata": {"name": "rival"}, "spec": {"authorizedAttestors": ["tpm"]}}
        client.create(f"{BASE}/nodeattestationpolicies", rival)
        assert main(["policy", "learn", "node-b", *access]) == 1
        assert "expected one NodeAttestationPolicy" in capsys.readouterr().err
        client.create(f"{BASE}/machineattestations", joined_under("p", record("joined")))
        assert main(["policy", "learn", "node-b", *access]) == 0, "the policy that machines joined under rules"
        assert learned(capsys.readouterr().out)["values"] == {"0": sorted((OLD, NEW)), "7": [OTHER]}
        for code, words, problem in (
            (2, ["learn", *access], "expected names of machines, or --all"),
            (2, ["learn", "a", "--all", *access], "expected names of machines, or --all"),
            (1, ["learn", "z", *access], "no machine z is on record"),
            (1, ["learn", "c", *access], "c has no register values"),
            (2, ["learn", "a", *access[:4]], "set --cluster"),
            (1, ["learn", "--all", *access[:4], "--cluster", "none"], "no Cluster or ClusterRecord none"),
            (1, ["learn", "--all", *access[:4], "--cluster", "green"], "green of these machines is gone"),
        ):
            assert main(["policy", *words]) == code
            assert problem in capsys.readouterr().err
