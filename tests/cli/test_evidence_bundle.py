"""What an exported bundle keeps of objects, and what it never does."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nodeattest_cli.explain.bundle import make_bundle, read_bundle
from nodeattest_cli.explain.collect import Collected
from nodeattest_cli.machines.row import rows_of
from nodeattest_cli.main import main
from nodeattest_controller.model.objects import items, mapping, text
from nodeattest_controller.model.token_binding import named_tokens
from nodeattest_kube.jsontypes import JsonObject

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PASSWORD = "hunter2-hunter2-hunter2"
TOKEN = "abcdef.0123456789abcdef"
NOISE: JsonObject = {
    "annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": PASSWORD,
        "controlplane.cluster.x-k8s.io/kubeadm-cluster-configuration": PASSWORD,
        "cluster-x-k8s-io/tpm-endorsement-key": "sha256:ek",
    },
    "managedFields": [{"fieldsV1": {PASSWORD: {}}}],
}


def made(kind: str, name: str, spec: JsonObject, **more: JsonObject) -> JsonObject:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "fleet", **NOISE},
            "spec": spec, **more}  # fmt: skip


def documents() -> list[JsonObject]:
    """Objects with a secret in every place where one may stand."""
    discovery: JsonObject = {"bootstrapToken": {"token": TOKEN, "caCertHashes": [PASSWORD]}, "tlsBootstrapToken": TOKEN}
    issued: JsonObject = {"spki": "sha256:0", "certificate": "PEM"}
    owned: JsonObject = {"clusterName": "c", "providerID": "p://1", "nodeName": "m", "issued": [issued]}
    refusal: JsonObject = {"requester": "Node", "reason": "PCRValueNotAllowed", "count": 3,
                           "firstTime": "2026-01-01T00:00:00Z", "lastTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    return [
        made("Cluster", "c", {"topology": {"variables": [{"value": PASSWORD}]}, "paused": False}),
        made("Machine", "m", {"clusterName": "c", "providerID": "p://1"}),
        made("DevMachine", "m", {"cloudInit": PASSWORD}),
        made("Node", "m", {"providerID": "p://1", "configSource": PASSWORD}),
        made(
            "KubeadmConfig",
            "m",
            {
                "joinConfiguration": {"discovery": discovery},
                "initConfiguration": {"bootstrapTokens": [{"token": TOKEN}]},
                "files": [{"content": PASSWORD}],
                "users": [{"passwd": PASSWORD}],
            },
        ),
        {"kind": "Secret", "metadata": {"name": "c-ca"}, "data": {"tls.crt": "Q0E=", "tls.key": PASSWORD}},
        made("MachineAttestation", "a-1", owned, status={"refusals": [refusal]}),
        made("MachineAttestation", "a-2", {**owned, "providerID": "p://2", "nodeName": "other"}),
    ]


def collected() -> Collected:
    found = Collected(documents=documents(), left_out=["Node m: forbidden"])
    machines, records = ([one for one in found.documents if one["kind"] == kind]
                         for kind in ("Machine", "MachineAttestation"))  # fmt: skip
    [found.row, _gone] = rows_of(machines, records, NOW)
    return found


def of_kind(bundle: JsonObject, kind: str) -> list[JsonObject]:
    return [one for one in items(bundle, "items") if text(one, "kind") == kind]


def test_no_secret_is_in_a_bundle() -> None:
    written = json.dumps(make_bundle(collected(), NOW))
    assert [one for one in (PASSWORD, TOKEN, TOKEN.partition(".")[2]) if one in written] == []


def test_what_checks_read_stays() -> None:
    bundle = make_bundle(collected(), NOW)
    [config] = of_kind(bundle, "KubeadmConfig")
    assert named_tokens(config).ids == {"abcdef"}
    [machine] = of_kind(bundle, "DevMachine")
    assert mapping(machine, "metadata", "annotations") == {"cluster-x-k8s-io/tpm-endorsement-key": "sha256:ek"}
    own, other = of_kind(bundle, "MachineAttestation")
    assert items(own, "spec", "issued") == [{"spki": "sha256:0", "certificate": "PEM"}]
    assert items(other, "spec", "issued") == [{"spki": "sha256:0"}]


def test_a_bundle_without_a_request_shows_the_record_offline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bundle.json"
    file.write_text(json.dumps(make_bundle(collected(), NOW)))
    main(["explain", str(file)])
    said = capsys.readouterr().out
    assert "PCRValueNotAllowed: 3 requests by the machine's own node" in said
    assert "not read  Node m: forbidden" in said
    assert "no request of it can be replayed" in said


def test_what_is_no_bundle_is_none() -> None:
    assert read_bundle(documents()) is None


def test_a_target_of_another_form_is_a_mistake_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "export", "blue", "-o", "-"]) == 2
    assert "machine/NAME" in capsys.readouterr().err
