"""``explain`` runs the controller's checks: each is in its output, and none denies what the controller admits."""

from __future__ import annotations

import pytest
from stored import NODE, PROVIDER_ID, Join, changed, stored_csr, without

from nodeattest_cli.explain.facts import NO_PLATFORMS, DocumentFacts, pick
from nodeattest_cli.explain.replay import CheckOutcome, Explanation, explain_request
from nodeattest_controller.controllers.csr.checks import CHECKS, CSRFacts
from nodeattest_controller.model.csr_request import parse_request
from nodeattest_controller.model.objects import mapping
from nodeattest_controller.verification.checks import Pipeline, Round
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers import envelope
from nodeattest_providers.errors import Check, Denied
from nodeattest_providers.names import NodeName, ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki

FARM: JsonObject = {"apiGroup": "farm.example.com", "kind": "FarmPool", "name": "p"}


@pytest.fixture(scope="module")
def join(tmp_path_factory: pytest.TempPathFactory) -> Join:
    return Join(ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue"))


def outcome(explanation: Explanation, name: str) -> CheckOutcome:
    return next(step.outcome for step in explanation.steps if step.name == name)


def declared(rounds: Round) -> list[str]:
    return [check.name for check in CHECKS if Purpose.CLIENT in check.purposes and rounds in check.rounds]


def test_every_declared_check_is_in_the_output_in_its_order(join: Join) -> None:
    first, second = join.round()
    for documents in ([*join.documents(), first], []):
        names = [step.name for step in explain_request(second, documents).steps]
        wanted = declared(Round.FINAL)
        assert [name for name in names if name in wanted] == wanted


def test_what_another_check_refused_is_not_checked_and_says_so(join: Join) -> None:
    first, second = join.round(mac=bytes(32))
    explanation = explain_request(second, [*join.documents(), first])
    assert outcome(explanation, "the provider's verification") is CheckOutcome.FAILED
    step = next(step for step in explanation.steps if step.name == "the node name as proven")
    assert (step.outcome, step.got) == (CheckOutcome.NOT_CHECKED, "needs: the provider's verification")


def pool(documents: list[JsonObject], uid: str = "uid-of-pool") -> JsonObject:
    """A MachinePool that lists the machine, with the KubeadmConfig that the Machine has."""
    machine = next(one for one in documents if one["kind"] == "Machine")
    spec: JsonObject = {
        "clusterName": "blue",
        "providerIDList": [PROVIDER_ID],
        "template": {"spec": {"bootstrap": mapping(machine, "spec", "bootstrap")}},
    }
    meta: JsonObject = {"name": "blue-mp", "namespace": "fleet", "uid": uid}
    status: JsonObject = {"bootstrapReady": True}
    api = "cluster.x-k8s.io/v1beta1"
    return {"apiVersion": api, "kind": "MachinePool", "metadata": meta, "spec": spec, "status": status}


@pytest.mark.parametrize("named", [True, False])
def test_a_name_that_a_proof_could_give_a_pools_instance_is_not_denied_before_the_proof(
    join: Join, named: bool
) -> None:
    entry: JsonObject = {"providerID": PROVIDER_ID, "sha256": join.fingerprint}
    registered: JsonObject = {"endorsementKeys": [{**entry, "nodeName": NODE} if named else entry]}
    documents = changed(join.documents(), "NodeAttestationPolicy", "spec", "tpm", value=registered)
    given = [*without(documents, "Machine"), pool(documents)]
    first, second = join.round()
    explanation = explain_request(second, [*given, first])
    assert outcome(explanation, "one Machine, alive and ready") is CheckOutcome.PASSED
    wanted = CheckOutcome.PASSED if named else CheckOutcome.FAILED
    assert outcome(explanation, "the Machine's node name") is wanted


@pytest.mark.parametrize(
    ("infra", "wanted"),
    [
        ({"status": {"infrastructureMachineKind": "FarmMachine"}}, "MachineNotFound"),
        ({"status": {}}, "NodeNameMismatch"),
        (None, "FarmPool p"),
    ],
)
def test_an_instance_whose_machine_is_still_to_be_made_is_told_from_one_that_gets_none(
    join: Join, infra: JsonObject | None, wanted: str
) -> None:
    documents = without(join.documents(), "Machine")
    made = changed([pool(join.documents())], "MachinePool", "spec", "template", "spec", "infrastructureRef", value=FARM)
    meta: JsonObject = {"name": "p", "namespace": "fleet"}
    given: list[JsonObject] = [{"kind": "FarmPool", "metadata": meta, **infra}] if infra is not None else []
    first, second = join.round()
    explanation = explain_request(second, [*documents, *made, *given, first])
    step = next(step for step in explanation.steps if step.name == "the Machine's node name")
    assert step.outcome is not CheckOutcome.PASSED
    assert wanted in f"{step.reason} {step.got}"


class Proves(ClusterAPISigner):
    """A verifier of one round that proves a node name."""

    versions, secure = (1,), True

    def __init__(self, provider: ProviderName, name: NodeName) -> None:
        self.provider = provider
        self._name = name

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        del facts
        check = Check("private DNS name", "EC2", "e", "g", passed=True)
        return AttestedNode(
            provider=self.provider,
            provider_id=request.csr.provider_id,
            proven_node_name=self._name,
            checks=(check,),
        )

    verify_serving_attestation_data = verify_client_attestation_data


async def test_a_name_that_the_provider_proves_is_the_instances(join: Join) -> None:
    """As the controller's pipeline has it: the provider of EC2 instances proves a private DNS name."""
    documents = join.documents()
    inputs = pick([*without(documents, "Machine"), pool(documents)], provider_id=PROVIDER_ID)
    request = parse_request(join.first)

    class Proving(DocumentFacts):
        def verifier(self, provider: ProviderName) -> ClusterAPISigner:
            return Proves(provider, proven)

    source = Proving(inputs=inputs, created=request.created, platforms=NO_PLATFORMS)
    proven = NodeName(NODE)
    assert "the node name as proven" in await Pipeline(CHECKS).run(CSRFacts(source, request))
    proven = NodeName("another")
    with pytest.raises(Denied):
        await Pipeline(CHECKS).run(CSRFacts(source, request))


def test_a_record_that_the_pool_owns_is_not_a_predecessors(join: Join) -> None:
    documents = join.documents()
    first, second = join.round()
    owner: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "MachinePool", "uid": "uid-of-pool"}
    record: JsonObject = {
        "kind": "MachineAttestation",
        "metadata": {"name": "a", "namespace": "fleet", "resourceVersion": "7", "ownerReferences": [owner]},
        "spec": {"clusterName": "blue", "providerID": PROVIDER_ID, "nodeName": NODE, "provider": "tpm"},
    }
    given = [*documents, first, record]
    assert outcome(explain_request(second, [*given, pool(documents)]), "not bound otherwise") is CheckOutcome.PASSED
    other = explain_request(second, [*given, pool(documents, uid="of-another-pool")])
    assert outcome(other, "not bound otherwise") is CheckOutcome.FAILED


def test_evidence_of_an_unknown_version_leaves_the_rest_unchecked(join: Join) -> None:
    raw = envelope.encode(join.csr, Evidence(ProviderName("tpm"), 9, {"phase": 1}))
    explanation = explain_request(stored_csr("first", raw), join.documents())
    assert outcome(explanation, "evidence version and schema") is CheckOutcome.FAILED
    assert outcome(explanation, "the provider's verification") is CheckOutcome.NOT_CHECKED


def test_a_node_of_another_machine_is_named_where_it_was_given(join: Join) -> None:
    first, second = join.round()
    node: JsonObject = {"kind": "Node", "metadata": {"name": NODE}, "spec": {"providerID": "metal://other"}}
    explanation = explain_request(second, [*join.documents(), first, node])
    assert outcome(explanation, "no other node of this name") is CheckOutcome.FAILED


def test_without_a_cluster_the_policy_is_still_read(join: Join) -> None:
    explanation = explain_request(join.first, without(join.documents(), "Cluster"))
    assert outcome(explanation, "attestor authorized") is CheckOutcome.PASSED
    assert outcome(explanation, "an active cluster") is CheckOutcome.NOT_CHECKED
    two = [*without(join.documents(), "Cluster"), *changed(join.documents(), "Cluster", "metadata", "name", value="b")]
    assert outcome(explain_request(join.first, two), "one policy") is not CheckOutcome.PASSED
