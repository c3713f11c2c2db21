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
from nodeattest_controller.model.machine_record import cluster_flaw, machine_views
from nodeattest_controller.model.serving_names import network_of
from nodeattest_controller.model.token_binding import named_tokens
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Unavailable

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PASSWORD = "hunter2-hunter2-hunter2"
TOKEN = "abcdef.0123456789abcdef"
MALFORMED = (PASSWORD, "abcdefhunter2-hunter2-hunter2", "abcdef." + PASSWORD, PASSWORD + "." + PASSWORD, TOKEN + "\n",
         "Abcdef.0123456789abcdef", "abcdef.0123456789abcde", "0123456789abcdef")  # fmt: skip
NOISE: JsonObject = {
    "annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": PASSWORD,
        "controlplane.cluster.x-k8s.io/kubeadm-cluster-configuration": PASSWORD,
        "attestation.cluster.x-k8s.io/of-another": PASSWORD,
        "cluster-x-k8s-io/of-another": PASSWORD,
        "cluster-x-k8s-io/tpm-endorsement-key": "sha256:ek",
        "attestation.cluster.x-k8s.io/tpm-endorsement-key": "sha256:ek",
    },
    "labels": {"cluster.x-k8s.io/control-plane": ""},
    "ownerReferences": [{"kind": "MachineSet", "name": "set", "uid": "u", "apiVersion": "x/v1", "note": PASSWORD}],
    "managedFields": [{"fieldsV1": {PASSWORD: {}}}],
}


def made(kind: str, name: str, spec: JsonObject, **more: JsonObject) -> JsonObject:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "fleet", **NOISE},
            "spec": spec, **more}  # fmt: skip


def documents() -> list[JsonObject]:
    """Objects with a secret in every place where one may stand."""
    return [*clusters(), *machines(), *bootstrap(), *recorded()]


def clusters() -> list[JsonObject]:
    return [
        made(
            "Cluster",
            "c",
            {
                "topology": {"variables": [{"value": PASSWORD}]},
                "paused": False,
                "controlPlaneEndpoint": {"host": "c.test", "port": 6443},
                "clusterNetwork": {"serviceDomain": "c.internal", "services": {"cidrBlocks": ["10.9.0.0/16"]}},
                "security": {"kubeletAuthentication": True, "authorizedAttestors": ["tpm"], "other": PASSWORD},
            },
        ),
        made("ClusterRecord", "c", {"paused": False, "password": PASSWORD}),
    ]


def machines() -> list[JsonObject]:
    config: JsonObject = {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "kind": "KubeadmConfig", "name": "m"}
    infra: JsonObject = {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DevMachine", "name": "m"}
    return [
        made(
            "Machine",
            "m",
            {
                "clusterName": "c",
                "providerID": "p://1",
                "failureDomain": PASSWORD,
                "infrastructureRef": {**infra, "fieldPath": PASSWORD},
                "bootstrap": {"data": PASSWORD, "dataSecretName": "m", "configRef": config},
            },
            status={
                "addresses": [{"type": "InternalIP", "address": "192.0.2.1", "note": PASSWORD}],
                "nodeRef": {"name": "m", "uid": "n"},
                "failureMessage": PASSWORD,
                "bootstrapReady": True,
                "conditions": [
                    {"type": "NodeAttested", "status": "False", "message": "Pending"},
                    {"type": "BootstrapReady", "status": "True", "message": PASSWORD},
                    {"type": "InfrastructureReady", "status": "False", "message": PASSWORD},
                ],
                "v1beta2": {"conditions": [{"type": "BootstrapConfigReady", "status": "True", "message": PASSWORD}]},
            },
        ),
        made(
            "MachinePool",
            "pool",
            {
                "clusterName": "c",
                "providerIDList": ["p://3"],
                "replicas": 1,
                "template": {
                    "metadata": {"annotations": {"a": PASSWORD}},
                    "spec": {
                        "bootstrap": {"data": PASSWORD, "configRef": config},
                        "infrastructureRef": {"apiGroup": "d", "kind": "DevPool", "name": "p", "note": PASSWORD},
                    },
                },
            },
        ),
        made(
            "DevPool", "p", {"sshKey": PASSWORD}, status={"infrastructureMachineKind": "DevMachine", "note": PASSWORD}
        ),
    ]


def bootstrap() -> list[JsonObject]:
    discovery: JsonObject = {"bootstrapToken": {"token": TOKEN, "caCertHashes": [PASSWORD]}, "tlsBootstrapToken": TOKEN}
    return [
        made("DevMachine", "m", {"cloudInit": PASSWORD}),
        made("Node", "m", {"providerID": "p://1", "configSource": PASSWORD}),
        made(
            "KubeadmConfig",
            "m",
            {
                "joinConfiguration": {"discovery": discovery},
                "initConfiguration": {"bootstrapTokens": [{"token": TOKEN}]},
                "clusterConfiguration": {"apiServer": {"extraArgs": {"oidc-client-secret": PASSWORD}}},
                "files": [{"content": PASSWORD}],
                "users": [{"passwd": PASSWORD}],
                "preKubeadmCommands": [f"login {PASSWORD}"],
                "ntp": {"servers": [PASSWORD]},
            },
            status={"ready": True, "dataSecretName": "m", "bootstrapData": PASSWORD, "failureMessage": PASSWORD},
        ),
    ]


def recorded() -> list[JsonObject]:
    issued: JsonObject = {"spki": "sha256:0", "certificate": "PEM"}
    owned: JsonObject = {"clusterName": "c", "providerID": "p://1", "nodeName": "m", "issued": [issued]}
    refusal: JsonObject = {"requester": "Node", "reason": "PCRValueNotAllowed", "time": "2026-01-01T00:00:00Z"}
    return [
        made(
            "MachineRecord",
            "r",
            {
                "clusterName": "c",
                "providerID": "p://4",
                "nodeName": "r",
                "password": PASSWORD,
                "bootstrapTokenID": TOKEN,
            },
        ),
        made(
            "CertificateSigningRequest",
            "csr",
            {
                "request": "UEVN",
                "signerName": "s",
                "usages": ["client auth"],
                "expirationSeconds": 600,
                "username": "system:bootstrap:abcdef",
                "groups": ["g"],
                "extra": {"scopes": [PASSWORD]},
            },
            status={"certificate": "UEVN", "conditions": [{"type": "Denied", "reason": "R", "message": "m"}]},
        ),
        {"kind": "Secret", "metadata": {"name": "c-ca"}, "data": {"tls.crt": "Q0E=", "tls.key": PASSWORD}},
        made("MachineAttestation", "a-1", owned, status={"refusals": [refusal], "other": PASSWORD}),
        made("MachineAttestation", "a-2", {**owned, "providerID": "p://2", "nodeName": "other"}),
    ]


def collected() -> Collected:
    found = Collected(documents=documents(), left_out=["Node m: forbidden"])
    kinds = ("Machine", "MachineAttestation")
    found.row, _gone = rows_of([one for one in found.documents if one["kind"] in kinds], NOW)
    return found


def name_of(obj: JsonObject) -> str:
    return text(obj, "metadata", "name")


def of_kind(bundle: JsonObject, kind: str) -> list[JsonObject]:
    return [one for one in items(bundle, "items") if text(one, "kind") == kind]


def test_no_secret_is_in_a_bundle() -> None:
    written = json.dumps(make_bundle(collected(), NOW))
    assert [one for one in (PASSWORD, TOKEN, TOKEN.partition(".")[2]) if one in written] == []


def test_machines_and_clusters_are_read_from_a_bundle_as_from_the_clusters() -> None:
    written = make_bundle(collected(), NOW)
    for one in documents():
        [kept] = [left for left in of_kind(written, text(one, "kind")) if name_of(left) == name_of(one)]
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
        config = made("KubeadmConfig", "m", cast("JsonObject", spec))
        written = make_bundle(Collected(documents=[config]), NOW)
        assert token.strip() not in json.dumps(written)
        [kept] = of_kind(written, "KubeadmConfig")
        for each in (config, kept):
            with pytest.raises(Unavailable, match="no bootstrap token"):
                named_tokens(each)


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
