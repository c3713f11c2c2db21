"""The condition NodeAttested: from the ledger and the time alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from node_attested_kit import NOW, ledger, machine

from nodeattest_controller.controllers.node_attested.conditions import (
    condition_of_machine,
    condition_of_pool,
)
from nodeattest_controller.controllers.node_attested.refused_claim import RefusedClaim, parse_refused_claim
from nodeattest_controller.model.attestation import new_attestation
from nodeattest_controller.model.last_decision import RESET, LastDecision
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.runtime.conditions import Condition, ConditionStatus, Severity
from nodeattest_providers.errors import Reason

BAD = Reason.PCR_VALUE_NOT_ALLOWED
NEW, JOINED = machine(node=False), machine()
PAST = NOW - timedelta(seconds=1)


def told(condition: Condition | None) -> tuple[ConditionStatus, str]:
    assert condition is not None
    return condition.status, condition.reason


def test_before_anything_is_known_it_is_unknown() -> None:
    assert told(condition_of_machine(NEW, None, NOW)) == (ConditionStatus.UNKNOWN, "NotYetAttested")


def test_an_attested_machine_says_by_what_and_until_when() -> None:
    condition = condition_of_machine(JOINED, ledger(JOINED), NOW)
    assert told(condition) == (ConditionStatus.TRUE, "Attested")
    assert condition is not None
    assert condition.message == "by tpm, until 2026-01-14T03:04:05Z"


def test_a_node_that_joined_without_attestation_is_told_of() -> None:
    assert told(condition_of_machine(JOINED, None, NOW)) == (ConditionStatus.UNKNOWN, "NotAttested")


@pytest.mark.parametrize("refused", [None, Reason.PCR_VALUE_NOT_ALLOWED])
def test_a_certificate_that_ended_is_told_before_anything_else(refused: Reason | None) -> None:
    condition = condition_of_machine(JOINED, ledger(JOINED, refused=refused, ends=NOW), NOW)
    assert told(condition) == (ConditionStatus.FALSE, "CertificateExpired")
    assert condition is not None
    assert (str(refused) in condition.message) is (refused is not None)
    assert told(condition_of_machine(JOINED, ledger(JOINED, ends=NOW), PAST)) == (ConditionStatus.TRUE, "Attested")


@pytest.mark.parametrize(
    ("reason", "severity"),
    [(Reason.PCR_VALUE_NOT_ALLOWED, Severity.ERROR), (Reason.ATTESTOR_NOT_AUTHORIZED, Severity.WARNING)],
)
def test_a_refused_renewal_has_its_reason(reason: Reason, severity: Severity) -> None:
    condition = condition_of_machine(JOINED, ledger(JOINED, refused=reason), NOW)
    assert told(condition) == (ConditionStatus.FALSE, reason)
    assert condition is not None
    assert condition.severity is severity
    assert "good until 2026-01-14" in condition.message


def test_a_claim_is_read_back_from_the_message() -> None:
    claim = RefusedClaim(NOW, BAD)
    assert parse_refused_claim(condition_of_machine(NEW, None, NOW, claim).message) == claim


@pytest.mark.parametrize("message", ["", "by tpm", str(RefusedClaim(NOW, BAD)).replace(str(BAD), "Unknown")])
def test_a_message_without_a_claim_gives_none(message: str) -> None:
    assert parse_refused_claim(message) is None


def test_what_was_done_to_the_node_is_said() -> None:
    known = ledger(JOINED, refused=Reason.PCR_VALUE_NOT_ALLOWED, treated=FailureAction.CORDON)
    condition = condition_of_machine(JOINED, known, NOW)
    assert condition is not None
    assert condition.message.endswith("its Node was cordoned")


def test_a_reset_is_told() -> None:
    reset = replace(new_attestation(JOINED), resource_version="1", verdict=LastDecision(RESET, "AttestationReset", NOW))
    assert told(condition_of_machine(JOINED, reset, NOW)) == (ConditionStatus.UNKNOWN, "AttestationReset")


def test_a_refused_claim_is_in_the_message_of_a_machine_that_has_not_joined_and_nowhere_else() -> None:
    claim = RefusedClaim(NOW, Reason.ENDORSEMENT_KEY_UNTRUSTED)
    shown = condition_of_machine(NEW, None, NOW, claim)
    assert told(shown) == told(condition_of_machine(NEW, None, NOW))
    assert "a request that claims this machine was refused at 2026-01-02T03:04:05Z" in shown.message
    assert "EndorsementKeyUntrusted" in shown.message
    for member, known in ((JOINED, ledger(JOINED)), (JOINED, None)):
        assert condition_of_machine(member, known, NOW, claim) == condition_of_machine(member, known, NOW)


def test_a_pool_counts_its_instances() -> None:
    good, ended = ledger(JOINED), ledger(JOINED, ends=NOW)
    failed = ledger(JOINED, refused=Reason.PCR_VALUE_NOT_ALLOWED)
    assert told(condition_of_pool([], NOW)) == (ConditionStatus.UNKNOWN, "NoInstances")
    assert told(condition_of_pool([good, good], NOW)) == (ConditionStatus.TRUE, "Attested")
    some = condition_of_pool([good, None, ended, failed], NOW)
    assert told(some) == (ConditionStatus.FALSE, "InstancesNotAttested")
    assert some.message == "1 of 4 instances attested"
    assert told(condition_of_pool([good, None], NOW)) == (ConditionStatus.UNKNOWN, "InstancesNotAttested")
