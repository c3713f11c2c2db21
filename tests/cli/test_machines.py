"""The ledger as a table: who is attested, until when, and how long the fleet would last."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from nodeattest_cli.machines.list import outage_budget, row_from_attestation
from nodeattest_cli.main import main
from nodeattest_controller import manifests
from nodeattest_controller.model.objects import mapping, rfc3339
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import start_sandbox
from nodeattest_sandbox.definitions import install_definitions

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


def ledger(node: str, *, cluster: str = "blue", expires: datetime | None = None) -> JsonObject:
    spec: JsonObject = {"clusterName": cluster, "nodeName": node, "machineName": f"m-{node}", "provider": "tpm"}
    spec["providerID"] = f"metal://{node}"
    if expires is not None:
        spec["expires"] = rfc3339(expires)
        spec["lastVerdict"] = {"verdict": "Approved", "reason": "Attested", "time": rfc3339(NOW)}
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineAttestation",
        "metadata": {"name": f"{cluster}-{node}"},
        "spec": spec,
    }


def test_the_fleet_survives_until_the_first_certificate_ends() -> None:
    found = [
        row_from_attestation(ledger(node, expires=NOW + timedelta(hours=hours))) for node, hours in (("a", 5), ("b", 3))
    ]
    assert outage_budget([*found, row_from_attestation(ledger("c"))], NOW) == timedelta(hours=3)
    assert outage_budget([row_from_attestation(ledger("c"))], NOW) is None
    assert outage_budget([], NOW) is None


def test_a_certificate_that_has_ended_is_told_as_such() -> None:
    assert outage_budget([row_from_attestation(ledger("a", expires=NOW - timedelta(hours=1)))], NOW) == timedelta(
        hours=-1
    )


def test_machines_are_listed_from_a_management_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start_sandbox(tmp_path, name="management") as plane:
        client = plane.client()
        install_definitions(client, manifests.crds())
        _fill(client)
        access = ["--kubeconfig", str(plane.admin_kubeconfig)]
        assert main(["machines", *access]) == 0
        table = capsys.readouterr().out.splitlines()
        assert table[0].split() == [
            "NAMESPACE",
            "CLUSTER",
            "NODE",
            "MACHINE",
            "PROVIDER",
            "EXPIRES",
            "IN",
            "VERDICT",
            "RESETS",
        ]
        assert [line.split()[2] for line in table[1:4]] == ["a", "b", "c"]
        assert "3 machines; without the controller every node would last 1d23h (first: a)" in table
        assert [line.split()[-2:] for line in table[1:4]] == [["Approved", "-"], ["Reset", "2"], ["Approved", "-"]]
        assert main(["machines", "list", *access, "--cluster", "green", "-o", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["machines"][0]["resets"] == 0
        assert [entry["node"] for entry in document["machines"]] == ["c"]
        assert document["survivesSeconds"] > 86400 * 2
        assert main(["machines", *access, "--cluster", "green", "-o", "yaml"]) == 0
        again = yaml.safe_load(capsys.readouterr().out)
        assert {**again, "survivesSeconds": 0} == {**document, "survivesSeconds": 0}
        assert main(["machines", *access, "--cluster", "green", "-o", "name"]) == 0
        assert capsys.readouterr().out == "machineattestation.attestation.cluster.x-k8s.io/green-c\n"
        assert main(["machines", *access, "-o", "wide"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[-2:] == ["metal://a", "blue-a"]
        assert main(["machines", *access, "-n", "nowhere"]) == 0
        assert capsys.readouterr().out == "no machine is attested in namespace nowhere; -A looks in every one\n"


def _fill(client: Client) -> None:
    path = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/default/machineattestations"
    now = datetime.now(UTC)
    reset = ledger("b", expires=now + timedelta(days=9))
    entry: JsonObject = {"time": rfc3339(NOW), "by": "alice", "reason": "new mainboard"}
    verdict: JsonObject = {"verdict": "Reset", "reason": "AttestationReset", "time": rfc3339(NOW)}
    mapping(reset, "spec").update({"resets": [entry, entry], "lastVerdict": verdict})
    for body in (
        reset,
        ledger("a", expires=now + timedelta(days=2)),
        ledger("c", cluster="green", expires=now + timedelta(days=3)),
    ):
        client.create(path, body)


def test_a_server_that_refuses_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start_sandbox(tmp_path, name="management") as plane:
        assert main(["machines", "--kubeconfig", str(plane.token_kubeconfig("abcdef.0123456789abcdef"))]) == 3
    errors = capsys.readouterr().err
    assert errors.startswith("nodeattest: 401")
    assert errors.count("\n") == 1
