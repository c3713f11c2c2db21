"""What an exported bundle keeps of objects, and what it never does."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from nodeattest_cli.explain.bundle import make_bundle
from nodeattest_cli.explain.collect import Collected
from nodeattest_cli.fleet import rows_of
from nodeattest_cli.main import main
from nodeattest_controller.model.csr_request import summarize
from nodeattest_controller.model.kubeadm_config import read_config
from nodeattest_controller.model.machine_view import cluster_flaw, machine_views
from nodeattest_controller.model.serving_names import network_of
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Unavailable

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PASSWORD = "hunter2-hunter2-hunter2"
TOKEN = "abcdef.0123456789abcdef"
MALFORMED = (PASSWORD, "abcdefhunter2-hunter2-hunter2", "abcdef." + PASSWORD, PASSWORD + "." + PASSWORD, TOKEN + "\n",
         "Abcdef.0123456789abcdef", "abcdef.0123456789abcde", "0123456789abcdef")  # fmt: skip
WHOLE = frozenset({("MachineAttestation", "spec"), ("MachineAttestation", "status")})
"""What is kept with all that is in it: nobody but the controller writes it."""


def with_secrets(value: JsonValue) -> JsonValue:
    """Put a secret beside everything that stands in an object."""
    if isinstance(value, list):
        return [with_secrets(one) for one in value]
    if isinstance(value, dict):
        return {**{name: with_secrets(one) for name, one in value.items()}, "password": PASSWORD}
    return value


def made(kind: str, name: str, **parts: JsonObject) -> JsonObject:
    """Make an object with a secret in every place where one may stand."""
    annotations: JsonObject = {"cluster-x-k8s-io/tpm-endorsement-key": "sha256:ek", "of-another": PASSWORD}
    owner: JsonObject = {"kind": "MachineSet", "name": "set", "uid": "u", "apiVersion": "x/v1", "note": PASSWORD}
    meta: JsonObject = {"name": name, "namespace": "fleet", "annotations": annotations, "ownerReferences": [owner]}
    meta["managedFields"] = [{"fieldsV1": {PASSWORD: {}}}]
    filled = {field: part if (kind, field) in WHOLE else with_secrets(part) for field, part in parts.items()}
    return {"apiVersion": "v1", "kind": kind, "metadata": meta, "password": PASSWORD, **filled}


def documents() -> list[JsonObject]:
    config: JsonObject = {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "kind": "KubeadmConfig", "name": "m"}
    infra: JsonObject = {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevMachine", "name": "m"}
    references: JsonObject = {"infrastructureRef": infra, "bootstrap": {"dataSecretName": "m", "configRef": config}}
    network: JsonObject = {"serviceDomain": "c.internal", "services": {"cidrBlocks": ["10.9.0.0/16"]}}
    security: JsonObject = {"kubeletAuthentication": True, "authorizedAttestors": ["tpm"]}
    endpoint: JsonObject = {"host": "c.test", "port": 6443}
    conditions: list[JsonValue] = [
        {"type": "NodeAttested", "status": "False", "message": "Pending"},
        {"type": "BootstrapReady", "status": "True", "message": PASSWORD},
        {"type": "InfrastructureReady", "status": "False", "message": PASSWORD},
    ]
    status: JsonObject = {
        "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
        "nodeRef": {"name": "m", "uid": "n"},
        "bootstrapReady": True,
        "conditions": conditions,
        "v1beta2": {"conditions": [{"type": "BootstrapConfigReady", "status": "True", "message": PASSWORD}]},
    }
    discovery: JsonObject = {"bootstrapToken": {"token": TOKEN}, "tlsBootstrapToken": TOKEN}
    tokens: JsonObject = {"bootstrapTokens": [{"token": TOKEN}]}
    request: JsonObject = {"request": "UEVN", "signerName": "s", "usages": ["client auth"], "expirationSeconds": 600}
    record: JsonObject = {"clusterName": "c", "providerID": "p://4", "nodeName": "r", "bootstrapTokenID": TOKEN}
    owned: JsonObject = {"clusterName": "c", "nodeName": "m", "issued": [{"spki": "sha256:0", "certificate": "PEM"}]}
    refusal: JsonObject = {"requester": "Node", "reason": "PCRValueNotAllowed", "time": "2026-01-01T00:00:00Z"}
    refused: JsonObject = {"refusals": [refusal], "other": PASSWORD}
    pool: JsonObject = {"clusterName": "c", "providerIDList": ["p://3"], "template": {"spec": references}}
    return [
        made("Cluster", "c", spec={"controlPlaneEndpoint": endpoint, "clusterNetwork": network, "security": security}),
        made("ClusterRecord", "c", spec={"paused": False}),
        made("Machine", "m", spec={"clusterName": "c", "providerID": "p://1", **references}, status=status),
        made("MachinePool", "pool", spec=pool),
        made("DevPool", "p", status={"infrastructureMachineKind": "DevMachine"}),
        made("DevMachine", "m", spec={"cloudInit": PASSWORD}),
        made("Node", "m", spec={"providerID": "p://1"}),
        made("KubeadmConfig", "m", spec={"joinConfiguration": {"discovery": discovery}, "initConfiguration": tokens}),
        made("MachineRecord", "r", spec=record),
        made("CertificateSigningRequest", "csr", spec=request, status={"certificate": "UEVN"}),
        made("MachineAttestation", "a-1", spec={**owned, "providerID": "p://1"}, status=refused),
        made("MachineAttestation", "a-2", spec={**owned, "providerID": "p://2", "nodeName": "other"}),
        {"kind": "Secret", "metadata": {"name": "c-ca"}, "data": {"tls.crt": "Q0E=", "tls.key": PASSWORD}},
    ]


def collected() -> Collected:
    found = Collected(documents=documents(), left_out=["Node m: forbidden"])
    kinds = ("Machine", "MachineAttestation")
    found.row, _gone = rows_of([one for one in found.documents if one["kind"] in kinds], NOW)
    return found


def of_kind(bundle: JsonObject, kind: str) -> list[JsonObject]:
    return [one for one in items(bundle, "items") if text(one, "kind") == kind]


def test_no_secret_is_in_a_bundle() -> None:
    assert json.dumps(documents()).count(PASSWORD) > 80
    written = json.dumps(make_bundle(collected(), NOW))
    assert [one for one in (PASSWORD, TOKEN, TOKEN.partition(".")[2]) if one in written] == []


def test_machines_and_clusters_are_read_from_a_bundle_as_from_the_clusters() -> None:
    written = make_bundle(collected(), NOW)
    for one in documents():
        name = text(one, "metadata", "name")
        [kept] = [left for left in of_kind(written, text(one, "kind")) if text(left, "metadata", "name") == name]
        for found, expected in zip(machine_views(kept), machine_views(one), strict=True):
            unread: dict[str, str] = {}  # of the annotations most, and the id of what is a whole token
            both = [replace(view, annotations=unread, bootstrap_token_id="") for view in (found, expected)]
            assert both[0] == both[1]
        assert network_of(kept) == network_of(one)
        assert cluster_flaw(kept) == cluster_flaw(one)
        assert summarize(kept) == summarize(one)
    [cluster] = of_kind(written, "Cluster")
    assert mapping(cluster, "spec", "security") == {"kubeletAuthentication": True, "authorizedAttestors": ["tpm"]}


@pytest.mark.parametrize("token", MALFORMED)
def test_a_malformed_token_is_left_out_and_refused_as_before(token: str) -> None:
    for spec in (
        {"joinConfiguration": {"discovery": {"tlsBootstrapToken": token}}},
        {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": token}}}},
        {"initConfiguration": {"bootstrapTokens": [{"token": TOKEN}, {"token": token}]}},
    ):
        config = made("KubeadmConfig", "m", spec=cast("JsonObject", spec))
        written = make_bundle(Collected(documents=[config]), NOW)
        assert token.strip() not in json.dumps(written)
        [kept] = of_kind(written, "KubeadmConfig")
        for each in (config, kept):
            with pytest.raises(Unavailable, match="no bootstrap token"):
                read_config(each).tokens()


def test_a_bundle_without_a_request_shows_the_record_offline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bundle.json"
    file.write_text(json.dumps(make_bundle(collected(), NOW)))
    main(["explain", str(file)])
    said = capsys.readouterr().out
    assert "PCRValueNotAllowed: by the machine's own node, last at 2026-01-01T00:00:00Z" in said
    assert "not read  Node m: forbidden" in said
    assert "no request of it can be replayed" in said
