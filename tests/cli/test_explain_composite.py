"""Composite proofs explained offline: each part's checks under its name, the objects that a part lacks by theirs."""

from __future__ import annotations

import base64

import pytest
from stored import MACHINE, Join, changed, stored_csr

from nodeattest_cli.explain.replay import CheckOutcome, explain_request
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import envelope
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.node_interface import JsonObject as EvidenceData
from nodeattest_sandbox.pki import ClusterPki

SECRET: JsonObject = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": f"{MACHINE}-attestation"},
    "data": {"secret": base64.b64encode(b"s" * 32).decode()},
}


@pytest.fixture(scope="module")
def join(tmp_path_factory: pytest.TempPathFactory) -> Join:
    return Join(ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue"))


def first_request(join: Join, **parts: EvidenceData) -> JsonObject:
    sound: dict[str, EvidenceData] = {"tpm": join.tpm.first().to_json(), "challenge": {"phase": 1}}
    whole: EvidenceData = {name: {"v": 1, "data": data} for name, data in (sound | parts).items()}
    raw = envelope.encode(join.csr, Evidence(ProviderName("composite"), 1, {"phase": 1, "parts": whole}))
    return stored_csr("first", raw, signerName="cluster.x-k8s.io/kube-apiserver-client-kubelet-composite")


def documents(join: Join) -> list[JsonObject]:
    made = changed(join.documents(), "NodeAttestationPolicy", "spec", "authorizedAttestors", value=["composite"])
    policy = next(one for one in made if one["kind"] == "NodeAttestationPolicy")
    mapping(policy, "spec")["composite"] = {"allOf": ["challenge", "tpm"]}
    return [*made, SECRET]


def test_every_check_of_every_part_is_shown_under_its_name(join: Join) -> None:
    explanation = explain_request(first_request(join), documents(join))
    assert {step.outcome for step in explanation.steps} == {CheckOutcome.PASSED}
    names = {step.name for step in explanation.steps}
    assert {"tpm: endorsement key: named by the platform", "challenge: the Machine's secret"} <= names
