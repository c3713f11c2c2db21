"""Requests of EC2 instances explained: by the controller's trust bundle, and refused by nothing that is not given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aws_world import POLICY, Node, filed_aws, trust_bundle
from stored import stored_csr

from nodeattest_cli.explain.replay import CheckOutcome, explain_request
from nodeattest_cli.main import main
from nodeattest_parsing.values import JsonObject

HEAD = "apiVersion: config.nodeattest.x-k8s.io/v1alpha1\nkind: NodeAttestationControllerConfiguration\n"


def filed(node: Node) -> JsonObject:
    request = filed_aws(node, node.evidence())
    csr = stored_csr("c", request.request, signerName="cluster.x-k8s.io/kube-apiserver-client-kubelet-aws")
    created = request.created.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**csr, "metadata": {"name": "c", "uid": "u", "creationTimestamp": created}}


def policy() -> JsonObject:
    spec: JsonObject = {"authorizedAttestors": ["aws"], "aws": POLICY}
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": "blue", "namespace": "fleet"},
        "spec": spec,
    }


def test_an_honest_request_is_refused_by_nothing_that_was_not_given() -> None:
    steps = {step.name: step for step in explain_request(filed(Node()), []).steps}
    assert steps["region allowed"].outcome is CheckOutcome.NOT_CHECKED
    assert steps["region allowed"].got == "not given: NodeAttestationPolicy"
    explanation = explain_request(filed(Node()), [policy()])
    assert not explanation.failed
    told = next(step for step in explanation.steps if step.name == "region's certificates")
    assert told.got == "not given: platforms.aws.trustBundle of the controller's configuration (--config)"


def test_the_document_is_verified_by_the_trust_bundle_of_the_configuration(tmp_path: Path) -> None:
    platforms = {"aws": {"trustBundle": str(trust_bundle(tmp_path / "trust"))}}
    explanation = explain_request(filed(Node()), [policy()], platforms)
    assert not explanation.failed
    steps = {step.name: step for step in explanation.steps}
    assert steps["the platform's own answer"].got == "needs the platform: AWS STS is not asked here"
    assert steps["the provider's verification"].outcome is CheckOutcome.NOT_CHECKED
    other = {"aws": {"trustBundle": str(trust_bundle(tmp_path / "other", "eu-west-1"))}}
    assert explain_request(filed(Node()), [policy()], other).failed


def test_the_command_reads_the_controllers_configuration_and_tells_a_mistake_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, csr = tmp_path / "controller.yaml", tmp_path / "csr.json"
    csr.write_text(json.dumps(filed(Node())))
    bundle = trust_bundle(tmp_path / "trust")
    config.write_text(HEAD + f"platforms: {{aws: {{trustBundle: {bundle}}}}}\n")
    (tmp_path / "policy.json").write_text(json.dumps(policy()))
    given = ["--with", str(tmp_path / "policy.json"), "--config", str(config)]
    assert main(["explain", str(csr), *given]) == 0
    assert "AWS STS is not asked here" in capsys.readouterr().out
    config.write_text(HEAD + "platforms: {aws: {trustBundel: x}}\n")
    assert main(["explain", str(csr), *given]) == 2
    assert "did you mean 'trustBundle'?" in capsys.readouterr().err
