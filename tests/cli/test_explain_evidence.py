"""Evidence of each kind explained offline: event logs, composite proofs, EC2's documents, late provider IDs."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
from aws_world import POLICY, Node, filed_aws, trust_bundle
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import World, request
from firmware import NO_ACTION, Measurement, crypto_agile_log, sha1_log, typical_boot
from late_machines import put_machine, serve_metal3
from stored import MACHINE, Join, changed, refusal, stored_csr
from tpm_world import SoftTpm

from nodeattest_cli.explain.replay import CheckOutcome, Explanation, explain_request
from nodeattest_cli.main import main
from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import envelope
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, NodeName, ProviderID, ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.node_interface import JsonObject as EvidenceData
from nodeattest_providers.tpm.structures import PcrSelection
from nodeattest_sandbox.pki import ClusterPki

BOOT = (Measurement(0, NO_ACTION, b"StartupLocality\0\0"), *typical_boot())


class MeasuredTpm(ForgedTpm):
    """One whose registers hold the boot."""

    def registers(self, selection: PcrSelection) -> tuple[bytes, ...]:
        values = dict.fromkeys(range(24), bytes(32))
        for one in BOOT:
            if one.kind != NO_ACTION:
                values[one.pcr] = hashlib.sha256(values[one.pcr] + one.digest("sha256")).digest()
        return tuple(values[pcr] for pcr in selection.pcrs)


@pytest.fixture(scope="module")
def join(tmp_path_factory: pytest.TempPathFactory) -> Join:
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return Join(ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue"), tpm=MeasuredTpm(key))


def explained(join: Join, log: bytes) -> Explanation:
    first, second = join.round(log=log)
    required: JsonObject = {"eventLog": "Require"}
    documents = changed(join.documents(), "NodeAttestationPolicy", "spec", "tpm", value=required)
    return explain_request(second, [*documents, first])


def test_a_log_that_explains_the_quote_is_shown_after_the_checks_that_it_passed(join: Join) -> None:
    explanation = explained(join, crypto_agile_log(BOOT))
    assert {step.outcome for step in explanation.steps} == {CheckOutcome.PASSED}
    assert {"event log replays PCR 0", "event log replays PCR 7"} <= {step.name for step in explanation.steps}
    assert dict(explanation.facts)["event log"] == "crypto-agile, 20 events, sha256; explains PCRs 0, 7"


@pytest.mark.parametrize(
    ("log", "reason", "said"),
    [
        (crypto_agile_log((*BOOT, Measurement(7, 4, bytes(4)))), "EventLogMismatch", "explains PCRs 0, not 7"),
        (sha1_log(BOOT), "EventLogBankMissing", "the SHA-1 form, 19 events; has not the quoted bank"),
    ],
)
def test_a_log_that_does_not_replay_is_refused_and_shown(join: Join, log: bytes, reason: str, said: str) -> None:
    explanation = explained(join, log)
    assert refusal(explanation)[1] == reason
    assert dict(explanation.facts)["event log"].endswith(said)


def test_every_check_of_every_part_is_shown_under_its_name(join: Join) -> None:
    parts: dict[str, EvidenceData] = {"tpm": join.tpm.first().to_json(), "challenge": {"phase": 1}}
    whole: EvidenceData = {name: {"v": 1, "data": data} for name, data in parts.items()}
    raw = envelope.encode(join.csr, Evidence(ProviderName("composite"), 1, {"phase": 1, "parts": whole}))
    first = stored_csr("first", raw, signerName="cluster.x-k8s.io/kube-apiserver-client-kubelet-composite")
    spec: JsonObject = {"authorizedAttestors": ["composite"], "composite": {"allOf": ["challenge", "tpm"]}}
    secret: JsonObject = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{MACHINE}-attestation"},
        "data": {"secret": base64.b64encode(b"s" * 32).decode()},
    }
    documents = changed(join.documents(), "NodeAttestationPolicy", "spec", value=spec)
    explanation = explain_request(first, [*documents, secret])
    assert {step.outcome for step in explanation.steps} == {CheckOutcome.PASSED}
    names = {step.name for step in explanation.steps}
    assert {"tpm: endorsement key: named by the platform", "challenge: the Machine's secret"} <= names


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
