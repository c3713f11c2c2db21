"""A stored request judged again offline: what passes, what fails and why, what lacks a document, what stays secret."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import cast

import pytest
from aws_world import POLICY, Node, filed_aws
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from stored import (
    EK_ANNOTATION,
    MAC,
    NODE,
    PROVIDER_ID,
    Join,
    authority,
    changed,
    made,
    outcome,
    policy,
    refusal,
    stored_csr,
    without,
)

from nodeattest_cli.explain.bundle import make_bundle
from nodeattest_cli.explain.collect import Collected, newest
from nodeattest_cli.explain.replay import CheckOutcome, Explanation, explain_request
from nodeattest_cli.main import main
from nodeattest_controller.controllers.csr.checks import CHECKS
from nodeattest_controller.model.csr_request import Round, parse_request
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope
from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.identifiers import ANNOTATION_REASON as WAITS
from nodeattest_providers.identifiers import ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence
from nodeattest_sandbox.pki import ClusterPki


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


@pytest.fixture(scope="module")
def join(pki: ClusterPki) -> Join:
    return Join(pki)


VERIFICATION = "the provider's verification"


def test_a_sound_join_passes_every_check_when_everything_is_given(join: Join) -> None:
    explanation = explain_request(join.first, join.documents())
    assert {step.outcome for step in explanation.steps} == {CheckOutcome.PASSED}
    names = [step.name for step in explanation.steps]
    told = {"endorsement key template", "endorsement key: named by the platform", "the Machine's node name"}
    assert told <= set(names)
    assert len(names) == len(set(names))
    assert all(step.section for step in explanation.steps)
    sources = dict(explanation.facts)
    assert sources["expected provider ID"] == f"{PROVIDER_ID} (Machine spec.providerID)"
    assert NODE in sources["node names"]
    assert sources["endorsement key"] == f"{join.fingerprint} (DevMachine annotation {EK_ANNOTATION})"


def test_what_needs_a_secret_of_the_controller_is_not_checked(join: Join) -> None:
    steps = explain_request(join.second, [*join.documents(), join.first]).steps
    unchecked = {step.name: step.got for step in steps if step.outcome is not CheckOutcome.PASSED}
    assert VERIFICATION in unchecked
    assert {got.partition(":")[0] for got in unchecked.values()} == {"needs the controller's secrets"}


@pytest.mark.parametrize("is_given", [True, False])
def test_every_declared_check_is_in_the_output_in_its_order(join: Join, *, is_given: bool) -> None:
    given = [*join.documents(), join.first] if is_given else []
    names = [step.name for step in explain_request(join.second, given).steps]
    declared = [check.name for check in CHECKS if Purpose.CLIENT in check.purposes and Round.FINAL in check.rounds]
    assert [name for name in names if name in declared] == declared


def test_what_another_check_refused_is_not_checked_and_says_so(join: Join) -> None:
    wrong: JsonValue = ["tpm", "insecure"]
    given = changed(join.documents(), "NodeAttestationPolicy", "spec", "authorizedAttestors", value=wrong)
    explanation = explain_request(join.first, given)
    assert refusal(explanation) == ("one policy", "PolicyInvalid")
    step = next(step for step in explanation.steps if step.name == VERIFICATION)
    assert (step.outcome, step.got) == (CheckOutcome.NOT_CHECKED, "needs: one policy")


def test_evidence_of_an_unknown_version_leaves_the_rest_unchecked(join: Join) -> None:
    raw = envelope.encode(join.csr, Evidence(ProviderName("tpm"), 9, {"phase": 1}))
    explanation = explain_request(stored_csr("first", raw), join.documents())
    assert outcome(explanation, "evidence version and schema") is CheckOutcome.FAILED
    assert outcome(explanation, VERIFICATION) is CheckOutcome.NOT_CHECKED


def ledger_of(*keys: str, uid: str, at: str = "2026-05-04T12:00:00Z") -> JsonObject:
    """A machine's ledger of today: its clock is far beyond any stored quote's."""
    times: JsonObject = dict.fromkeys(("notBefore", "notAfter", "issuedAt"), at)
    issued: list[JsonValue] = [{"requestUID": uid, "spki": key, "certificate": "pem", **times} for key in keys]
    boot: JsonObject = {"clock": 2**40, "resetCount": 1, "pcrDigest": ""}
    spec: JsonObject = {"providerID": PROVIDER_ID, "nodeName": NODE, "provider": "tpm", "issued": issued, "boot": boot}
    meta: JsonObject = {"ownerReferences": [{"uid": "uid-of-machine"}]}
    return {"kind": "MachineAttestation", "metadata": meta, "spec": spec}


def test_a_request_that_was_certified_passes_the_checks_of_issuing_after_the_machine_renewed(join: Join) -> None:
    documents, spki = [*join.documents(), join.first], parse_request(join.second).csr.spki_sha256
    issuing = "a key that was never certified"
    renewed = ledger_of(spki, "sha256:newer", uid="uid-of-second")
    assert outcome(explain_request(join.second, [*documents, renewed]), issuing) is CheckOutcome.PASSED
    later = ledger_of("sha256:newer", uid="uid-of-third", at="2026-05-05T12:00:00Z")
    assert outcome(explain_request(join.second, [*documents, later]), issuing) is CheckOutcome.NOT_CHECKED


NAMED = "a token that the machine's bootstrap configuration names"
TOKEN = ("spec", "joinConfiguration", "discovery", "bootstrapToken", "token")


Spoil = Callable[[list[JsonObject]], list[JsonObject]]


def with_other_token(given: list[JsonObject]) -> list[JsonObject]:
    return changed(given, "KubeadmConfig", *TOKEN, value="fedcba.0123456789abcdef")


TOKENS: list[tuple[Spoil, str]] = [
    (lambda given: given, CheckOutcome.PASSED),
    (lambda given: without(given, "KubeadmConfig"), CheckOutcome.NOT_CHECKED),
    (lambda given: without(given, "NodeAttestationPolicy"), CheckOutcome.NOT_CHECKED),
    (with_other_token, "TokenNotThisMachines"),
]


@pytest.mark.parametrize(("spoil", "wanted"), TOKENS)
def test_the_token_is_held_to_the_configuration_that_was_given(join: Join, spoil: Spoil, wanted: str) -> None:
    explanation = explain_request(join.first, spoil(join.documents()))
    step = next(step for step in explanation.steps if step.name == NAMED)
    assert (step.reason or step.outcome) == wanted
    assert "0123456789abcdef" not in str(explanation.to_json())


def test_without_documents_nothing_fails_and_what_is_missing_is_named(join: Join) -> None:
    explanation = explain_request(join.second, [])
    assert not explanation.failed
    missing = " ".join(step.got for step in explanation.steps if step.outcome is CheckOutcome.NOT_CHECKED)
    assert "NodeAttestationPolicy" in missing
    assert f"a Machine with provider ID {PROVIDER_ID}" in missing


EK = ("metadata", "annotations", EK_ANNOTATION)


@pytest.mark.parametrize(
    ("kind", "path", "value", "refused"),
    [
        ("DevMachine", EK, "sha256:00", ("endorsement key: named by the platform", "EndorsementKeyUntrusted")),
        ("Machine", ("status", "addresses"), [], ("the Machine's node name", "NodeNameMismatch")),
        (
            *("NodeAttestationPolicy", ("spec", "authorizedAttestors"), ["challenge"]),
            ("attestor authorized", "AttestorNotAuthorized"),
        ),
        ("Node", ("spec", "providerID"), "metal://other", ("no other node of this name", "NodeNameTaken")),
    ],
)
def test_the_check_that_refuses_is_named_with_its_reason(
    join: Join, kind: str, path: tuple[str, ...], value: JsonValue, refused: tuple[str, str]
) -> None:
    node: JsonObject = {"kind": "Node", "metadata": {"name": NODE}, "spec": {"providerID": PROVIDER_ID}}
    filed = join.second if kind == "Node" else join.first
    explanation = explain_request(filed, changed([*join.documents(), join.first, node], kind, *path, value=value))
    assert refusal(explanation) == refused
    assert all(step.remedy for step in explanation.steps if step.outcome is CheckOutcome.FAILED)


def test_no_proof_is_shown(join: Join) -> None:
    said = json.dumps(explain_request(join.second, [*join.documents(), join.first]).to_json())
    for shown in (MAC.hex(), b64encode(MAC), base64.b64encode(MAC).decode()):
        assert shown not in said


@given(request=st.binary(max_size=200), signer=st.text(max_size=20))
def test_any_stored_bytes_give_an_explanation(request: bytes, signer: str) -> None:
    csr = stored_csr("any", request, signerName=signer)
    assert explain_request(csr, []).failed


def test_the_command_explains_a_bundle_and_tells_by_its_exit_code(
    join: Join, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def explain(documents: list[JsonObject], *words: str, code: int) -> str:
        bundle = make_bundle(Collected(csr=join.first, documents=documents), datetime.now(UTC))
        (tmp_path / "bundle.json").write_text(json.dumps(bundle))
        assert main(["explain", str(tmp_path / "bundle.json"), *words]) == code
        return capsys.readouterr().out

    said = explain(join.documents(), code=0)
    assert said.endswith("nothing refuses it\n")
    assert "pass  the provider's verification  [identity rule 6]" in said
    denied = changed(join.documents(), "NodeAttestationPolicy", "spec", "authorizedAttestors", value=["challenge"])
    document = json.loads(explain(denied, "-o", "json", code=1))
    assert document["refused"] is True
    assert {"name", "section", "outcome", "expected", "got"} <= set(document["checks"][0])
    assert re.search(r"expected  .*\n +got  .*\n +do  ", explain(denied, code=1))


def test_of_requests_of_one_second_the_answer_is_the_newest(join: Join) -> None:
    first, answer = join.first, join.second
    before = "2026-05-04T11:59:59Z"
    older = changed([answer], "CertificateSigningRequest", "metadata", "creationTimestamp", value=before)
    for requests in ([first, answer, *older], [*older, answer, first]):
        assert newest(requests, PROVIDER_ID) == answer
    assert newest([answer], "metal://another") is None


def test_what_a_pending_request_waits_for_is_shown(join: Join) -> None:
    [pending] = changed([join.first], "CertificateSigningRequest", "metadata", "annotations", value={WAITS: "why"})
    assert ("waits", "why") in explain_request(pending, []).facts


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "expected a Kubernetes object, got none"),
        ("kind: Pod", "expected a file of nodeattest evidence export"),
        ("kind: a\nkind: b", "a duplicate key at line 2"),
        ("a: [", "expected YAML or JSON"),
    ],
)
def test_a_file_that_is_no_bundle_is_refused_in_one_line(
    tmp_path: Path, content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    assert main(["explain", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_a_first_request_that_its_answer_superseded_was_refused_by_nobody(join: Join) -> None:
    superseded: JsonObject = {"conditions": [{"type": "Denied", "reason": "Superseded", "message": "nothing to do"}]}
    explanation = explain_request({**join.first, "status": superseded}, join.documents())
    assert not explanation.failed
    assert not explanation.unexplained


def filed(node: Node) -> JsonObject:
    request = filed_aws(node, node.evidence())
    csr = stored_csr("c", request.request, signerName="cluster.x-k8s.io/kube-apiserver-client-kubelet-aws")
    created = request.created.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**csr, "metadata": {"name": "c", "uid": "u", "creationTimestamp": created}}


def instance_documents(pki: ClusterPki) -> list[JsonObject]:
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


def test_an_honest_request_is_refused_by_nothing_that_was_not_given(pki: ClusterPki) -> None:
    for count in range(4):
        explanation = explain_request(filed(Node()), instance_documents(pki)[:count])
        assert not explanation.failed
        assert outcome(explanation, VERIFICATION) is CheckOutcome.NOT_CHECKED
    explanation = explain_request(filed(Node()), instance_documents(pki))
    step = next(step for step in explanation.steps if step.name == VERIFICATION)
    assert step.got == "needs the controller's platforms.aws.trustBundle"


# Kubelet's own serving requests

CAPI = "cluster.x-k8s.io/v1beta1"
CLUSTER = made(CAPI, "Cluster", "blue", spec={"controlPlaneEndpoint": {"host": "10.0.0.100"}})


def machine(name: str, address: str) -> JsonObject:
    status: JsonObject = {
        "nodeRef": {"name": name},
        "bootstrapReady": True,
        "addresses": [{"type": "InternalIP", "address": address}],
    }
    spec: JsonObject = {"clusterName": "blue", "providerID": f"x://{name}"}
    return made(CAPI, "Machine", name, uid=name, spec=spec, status=status)


def serving(**serving: JsonValue) -> JsonObject:
    return policy(authorizedAttestors=["challenge"], serving=serving)


def registered(name: str) -> JsonObject:
    return {"kind": "Node", "metadata": {"name": name, "uid": f"n-{name}"}, "spec": {"providerID": f"x://{name}"}}


def kubelets(*addresses: str, node: str = NODE) -> JsonObject:
    subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{node}")]
    names = [x509.IPAddress(ip_address(each)) for each in addresses]
    builder = x509.CertificateSigningRequestBuilder(x509.Name([x509.NameAttribute(*each) for each in subject]))
    signed = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(
        ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()
    )
    return stored_csr(
        "csr-1",
        signed.public_bytes(serialization.Encoding.PEM),
        signerName="kubernetes.io/kubelet-serving",
        usages=["digital signature", "server auth"],
        username=f"system:node:{NODE}",
        groups=["system:nodes"],
    )


def refused(explanation: Explanation) -> list[str]:
    """Return the reasons, each once: a rule that is asked of the live Machine, too, refuses twice."""
    return list(dict.fromkeys(step.reason for step in explanation.steps if step.outcome is CheckOutcome.FAILED))


GIVEN = (
    CLUSTER,
    serving(kubelet="Approve"),
    machine(NODE, "10.0.0.1"),
    machine("worker-2", "10.0.0.2"),
    registered(NODE),
)


def test_kubelets_own_request_passes_every_check_when_everything_is_given() -> None:
    explanation = explain_request(kubelets("10.0.0.1"), GIVEN)
    assert {step.outcome for step in explanation.steps} == {CheckOutcome.PASSED}
    assert ("names", "10.0.0.1") in explanation.facts


@pytest.mark.parametrize(
    ("csr", "given", "reason"),
    [
        (kubelets("10.0.0.2"), GIVEN, "AddressNotAllowed"),
        (kubelets("10.0.0.1"), (CLUSTER, serving(), *GIVEN[2:]), "ServingNotAllowed"),
        (kubelets("10.0.0.1"), (*GIVEN[:2], *GIVEN[3:]), "MachineNotFound"),
        (kubelets("10.0.0.1", node="worker-2"), GIVEN, "RequesterNotAllowed"),
    ],
)
def test_what_refuses_kubelets_own_request_is_named(
    csr: JsonObject, given: tuple[JsonObject, ...], reason: str
) -> None:
    assert refused(explain_request(csr, given)) == [reason]


def test_what_is_not_given_leaves_kubelets_own_request_unchecked() -> None:
    explanation = explain_request(kubelets("10.0.0.1"), ())
    assert refused(explanation) == []
    assert CheckOutcome.NOT_CHECKED in {step.outcome for step in explanation.steps}
