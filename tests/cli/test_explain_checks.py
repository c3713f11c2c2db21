"""``explain`` runs the controller's checks: each is in its output, and none denies what the controller admits."""

from __future__ import annotations

import pytest
from stored import NODE, Join, stored_csr

from nodeattest_cli.explain.replay import CheckOutcome, Explanation, explain_request
from nodeattest_controller.controllers.csr.checks import CHECKS
from nodeattest_controller.verification.checks import Round
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import envelope
from nodeattest_providers.identifiers import ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence
from nodeattest_sandbox.pki import ClusterPki


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
