"""What a ledger remembers of refusals: read back as written, and nothing of it is lost or taken over by an issue."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from builders import MEMBER

from nodeattest_controller.model.attestation import new_attestation, parse_attestation, render_attestation
from nodeattest_controller.model.last_decision import (
    DENIED,
    LastDecision,
    Remediation,
    parse_last_decision,
    parse_remediation,
)
from nodeattest_controller.model.policy import FailureAction
from nodeattest_kube.jsontypes import JsonObject, JsonValue

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
VERDICT = LastDecision(DENIED, "PCRValueNotAllowed", AT)
TREATMENT = Remediation(
    action=FailureAction.CORDON, node_name="node-0", node_uid="n-0", reason="PCRValueNotAllowed", time=AT
)


def test_verdict_and_treatment_are_read_back_as_written() -> None:
    body = render_attestation(new_attestation(MEMBER), MEMBER, "signer")
    spec: JsonObject = {"lastVerdict": VERDICT.render(), "onFailure": TREATMENT.render()}
    read = parse_attestation({**body, "spec": {**spec, "clusterName": "c", "providerID": "sandbox://node-0"}})
    assert (read.verdict, read.treatment) == (VERDICT, TREATMENT)


def test_a_ledger_without_either_has_neither() -> None:
    read = parse_attestation(render_attestation(new_attestation(MEMBER), MEMBER, "signer"))
    assert (read.verdict, read.treatment) == (None, None)


def test_what_was_done_to_a_node_is_not_in_the_patch_that_issues() -> None:
    known = replace(new_attestation(MEMBER), resource_version="7", verdict=VERDICT, treatment=TREATMENT)
    spec = render_attestation(known, MEMBER, "signer")["spec"]
    assert isinstance(spec, dict)
    assert "onFailure" not in spec


@pytest.mark.parametrize("spoilt", [{"time": "yesterday"}, {"action": "Explode"}, {"action": 3}, {"time": None}])
def test_a_treatment_that_cannot_be_read_is_none(spoilt: dict[str, JsonValue]) -> None:
    assert parse_remediation({"onFailure": {**TREATMENT.render(), **spoilt}}) is None


def test_a_verdict_without_a_word_is_none() -> None:
    assert parse_last_decision({"lastVerdict": {"reason": "Attested"}}) is None
