"""Evidence explained offline: EC2's documents, and provider IDs that come from infrastructure objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from aws_world import POLICY, Node, filed_aws, trust_bundle
from csr_world import World, request
from late_machines import put_machine, serve_metal3
from stored import authority, made, outcome, policy, stored_csr
from tpm_world import SoftTpm

from nodeattest_cli.explain.replay import CheckOutcome, explain_request
from nodeattest_cli.main import main
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, NodeName, ProviderID
from nodeattest_sandbox.pki import ClusterPki

HEAD = "apiVersion: config.nodeattest.x-k8s.io/v1alpha1\nkind: NodeAttestationControllerConfiguration\n"


def filed(node: Node) -> JsonObject:
    request = filed_aws(node, node.evidence())
    csr = stored_csr("c", request.request, signerName="cluster.x-k8s.io/kube-apiserver-client-kubelet-aws")
    created = request.created.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**csr, "metadata": {"name": "c", "uid": "u", "creationTimestamp": created}}


def given(pki: ClusterPki) -> list[JsonObject]:
    """Return what an instance's request is evaluated by, without its infrastructure machine."""
    aws, status = Node(), cast("JsonObject", {"bootstrapReady": True})
    spec: JsonObject = {"clusterName": "blue", "providerID": filed_aws(aws, aws.evidence()).csr.provider_id}
    capi = "cluster.x-k8s.io/v1beta1"
    return [
        made(capi, "Cluster", "blue"),
        made(capi, "Machine", "n-0", spec=spec, status=status),
        policy(authorizedAttestors=["aws"], aws=POLICY, tokenBinding="Off"),
        authority(pki),
    ]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


def test_an_honest_request_is_refused_by_nothing_that_was_not_given(pki: ClusterPki) -> None:
    for count in range(4):
        explanation = explain_request(filed(Node()), given(pki)[:count])
        assert not explanation.failed
        assert outcome(explanation, "the provider's verification") is CheckOutcome.NOT_CHECKED
    explanation = explain_request(filed(Node()), given(pki))
    told = next(step for step in explanation.steps if step.name == "the provider's verification")
    assert told.got == "not given: platforms.aws.trustBundle of the controller's configuration (--config)"


def test_the_document_is_verified_by_the_trust_bundle_of_the_configuration(pki: ClusterPki, tmp_path: Path) -> None:
    platforms = {"aws": {"trustBundle": str(trust_bundle(tmp_path / "trust"))}}
    explanation = explain_request(filed(Node()), given(pki), platforms)
    assert not explanation.failed
    steps = {step.name: step for step in explanation.steps}
    assert steps["signature of the document"].outcome is CheckOutcome.PASSED
    assert steps["the provider's verification"].got == "needs the platform: AWS STS is not asked here"
    other = {"aws": {"trustBundle": str(trust_bundle(tmp_path / "other", "eu-west-1"))}}
    assert explain_request(filed(Node()), given(pki), other).failed


def test_the_command_reads_the_controllers_configuration_and_tells_a_mistake_in_it(
    pki: ClusterPki, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, csr = tmp_path / "controller.yaml", tmp_path / "csr.json"
    csr.write_text(json.dumps(filed(Node())))
    bundle = trust_bundle(tmp_path / "trust")
    config.write_text(HEAD + f"platforms: {{aws: {{trustBundle: {bundle}}}}}\n")
    (tmp_path / "facts.json").write_text(json.dumps({"kind": "List", "items": given(pki)}))
    words = ["explain", str(csr), "--with", str(tmp_path / "facts.json"), "--config", str(config)]
    assert main(words) == 0
    assert "AWS STS is not asked here" in capsys.readouterr().out
    config.write_text(HEAD + "platforms: {aws: {trustBundel: x}}\n")
    assert main(words) == 2
    assert "did you mean 'trustBundle'?" in capsys.readouterr().err


EXPECTED = "metal3://fleet/rack-1/m-1"
KEY = "sha256:" + "0a" * 32


def late_documents(folder: Path) -> list[JsonObject]:
    """What the management cluster holds of a CAPM3 machine before its Node exists."""
    world = World(ClusterPki.make(folder, "blue"), verifier=None)  # pyright: ignore[reportArgumentType] - nothing verifies here
    serve_metal3(world)
    put_machine(world, "m-1", "abcdef")
    world.policy(tokenBinding="Required", infrastructure={"hostObjects": ["BareMetalHost"]})
    kinds = {"machines": "Machine", "clusters": "Cluster", "metal3machines": "Metal3Machine"}
    kinds |= {"kubeadmconfigs": "KubeadmConfig", "nodeattestationpolicies": "NodeAttestationPolicy"}
    found: list[JsonObject] = []
    for path, obj in world.management_api.objects.items():
        kind = kinds.get(path.split("/")[-2])
        found += [{**obj, "kind": kind}] if kind is not None else []
    consumer: JsonObject = {"kind": "Metal3Machine", "namespace": "fleet", "name": "m-1"}
    meta: JsonObject = {"name": "rack-1", "namespace": "fleet", "annotations": {ANNOTATION_TPM_ENDORSEMENT_KEY: KEY}}
    return [*found, {"kind": "BareMetalHost", "metadata": meta, "spec": {"consumerRef": consumer}}]


def test_each_source_is_shown(tmp_path: Path) -> None:
    evidence = SoftTpm().first().to_json()
    filed = request("r-1", evidence=evidence, node=NodeName("m-1"), provider_id=ProviderID(EXPECTED))
    stored: JsonObject = {**filed, "metadata": {**mapping(filed, "metadata"), "uid": "uid-r-1"}}
    facts = dict(explain_request(stored, late_documents(tmp_path)).facts)
    assert facts["Machine"] == "Machine m-1"
    assert facts["expected provider ID"].startswith(f"{EXPECTED} (Metal3Machine expression metal3://")
    assert "rack-1 (BareMetalHost)" in facts["node names"]
    assert facts["endorsement key"] == f"{KEY} (BareMetalHost annotation {ANNOTATION_TPM_ENDORSEMENT_KEY})"
