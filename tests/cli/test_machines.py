"""The ledger as a table: who is attested, until when, and how long the fleet would last."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from attested_fleet import attestation

from nodeattest_cli.fleet import rows_of
from nodeattest_cli.machines.list import outage_budget
from nodeattest_cli.main import main
from nodeattest_controller import manifests
from nodeattest_controller.controllers.node_attested.conditions import RefusedClaim
from nodeattest_controller.model.attestation import attestation_name
from nodeattest_parsing.objects import mapping, rfc3339
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderID
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions

HEADINGS = "NAMESPACE CLUSTER NODE MACHINE PROVIDER EXPIRES IN STATE REFUSED RESETS"
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


def machine(name: str, *, provider_id: str | None = None, **status: JsonValue) -> JsonObject:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Machine",
        "metadata": {"name": f"m-{name}", "namespace": "default", "labels": {"pool": name}},
        "spec": {"clusterName": "blue", "providerID": f"metal://blue/m-{name}" if provider_id is None else provider_id},
        "status": {**status},
    }


def conditions(message: str) -> JsonValue:
    return [{"type": "NodeAttested", "status": "Unknown", "reason": "NotYetAttested", "message": message}]


def test_the_fleet_survives_until_the_first_certificate_ends() -> None:
    ends = [attestation(node, ends=NOW + timedelta(hours=hours)) for node, hours in (("a", 5), ("b", 3))]
    assert outage_budget([*rows_of([*ends, attestation("c", ends=None)], NOW)], NOW) == timedelta(hours=3)
    assert outage_budget([*rows_of([attestation("c", ends=None)], NOW)], NOW) is None


def test_every_machine_has_a_row_and_its_state_is_the_conditions() -> None:
    claim = RefusedClaim(NOW, Reason.TOKEN_NOT_THIS_MACHINES)
    machines = [
        machine("a"),
        machine("b", conditions=conditions(f"no certificate was issued for this machine yet; {claim}")),
        machine("c", provider_id=""),
        machine("d"),
        machine("e"),
    ]
    day = timedelta(days=1)
    ledgers = [
        attestation("m-a", ends=NOW + day),
        attestation("m-d", ends=NOW + day, reason="PCRValueNotAllowed"),
        attestation("m-e", ends=NOW - day),
        attestation("m-gone", ends=NOW + day),
    ]
    for one in ledgers:
        mapping(one, "metadata")["namespace"] = "default"
    found = {one.machine: one for one in rows_of([*machines, *ledgers], NOW)}
    assert {name: (one.state, one.refused, one.attested) for name, one in found.items()} == {
        "m-a": ("Attested", "", True),
        "m-b": ("NotYetAttested", "TokenNotThisMachines", False),
        "m-c": ("NoProviderID", "", False),
        "m-d": ("PCRValueNotAllowed", "PCRValueNotAllowed", False),
        "m-e": ("CertificateExpired", "", False),
        "m-gone": ("MachineGone", "", True),
    }


def test_machines_are_listed_from_a_management_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start_sandbox(tmp_path, name="management") as plane:
        client = plane.client()
        install_cluster_api(client)
        install_definitions(client, cast("list[JsonMap]", manifests.crds()))
        _fill(client)
        access = ["--kubeconfig", str(plane.admin_kubeconfig)]

        def shown(*words: str, code: int = 0) -> str:
            assert main(["machines", "list", *words, *access]) == code
            return capsys.readouterr().out

        table = shown().splitlines()
        assert " ".join(table[0].split()) == HEADINGS
        assert [line.split()[3] for line in table[1:5]] == ["m-a", "m-b", "m-new", "m-c"]
        assert table[-1] == "4 machines, 3 attested; without the controller every node would last 47h59m (first: a)"
        assert [line.split()[-3:] for line in table[1:5]] == [
            ["Attested", "-", "-"],
            ["Attested", "-", "2"],
            ["NotYetAttested", "-", "-"],
            ["MachineGone", "-", "-"],
        ]
        document = json.loads(shown("--cluster", "green", "-o", "json"))
        assert document["machines"][0]["resets"] == 0
        assert [entry["node"] for entry in document["machines"]] == ["c"]
        assert document["survivesSeconds"] > 86400 * 2
        assert [one["machine"] for one in json.loads(shown("--not-attested", "-o", "json"))["machines"]] == ["m-new"]
        assert [one["machine"] for one in json.loads(shown("-l", "pool=b", "-o", "json"))["machines"]] == ["m-b"]
        assert shown("a", "metal://blue/m-b").count("\n") == 5  # by node, by provider ID; with headings and outlook
        assert shown("b", "-o", "wide").splitlines()[1].split()[10:12] == [
            "metal://blue/m-b",
            attestation_name("blue", ProviderID("metal://blue/m-b")),
        ]
        assert shown("-n", "nowhere") == "no machine in namespace nowhere; -A looks in every one\n"
        assert shown("nobody", code=1) == ""


def _fill(client: Client) -> None:
    path = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/default/machineattestations"
    now = datetime.now(UTC)
    entry: JsonObject = {"time": rfc3339(NOW), "by": "alice", "reason": "new mainboard"}
    for body in (
        attestation("m-b", ends=now + timedelta(days=9), nodeName="b", resets=[entry, entry]),
        attestation("m-a", ends=now + timedelta(days=2), nodeName="a"),
        attestation("m-c", cluster="green", ends=now + timedelta(days=3), nodeName="c"),
    ):
        client.create(path, body)
    for name in ("a", "b", "new"):
        body = {**machine(name), "apiVersion": "cluster.x-k8s.io/v1beta1"}
        client.create("/apis/cluster.x-k8s.io/v1beta1/namespaces/default/machines", body)
