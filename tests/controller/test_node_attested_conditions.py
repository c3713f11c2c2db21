"""The condition NodeAttested: from the ledger and the time alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from node_attested_kit import ISSUED, NOW, ledger, machine

from nodeattest_controller.controllers.node_attested.conditions import (
    condition_of_machine,
    condition_of_pool,
)
from nodeattest_controller.controllers.node_attested.refused_claims import RefusedClaims, parse_refused_claims
from nodeattest_controller.model.attestation import new_attestation
from nodeattest_controller.model.last_decision import RESET, LastDecision
from nodeattest_controller.model.objects import rfc3339
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.model.refusals import MAX_REASONS, RecordedRefusal, Requester
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


def test_how_many_other_reasons_there_were_since_the_certificate_is_said() -> None:
    def recorded(reason: Reason, who: Requester = Requester.NODE, at: datetime = NOW) -> RecordedRefusal:
        return RecordedRefusal(requester=who, reason=reason, first=at, last=at)

    history = (
        recorded(BAD),
        recorded(Reason.EVENT_LOG_MISSING),
        recorded(Reason.ATTESTOR_NOT_AUTHORIZED),
        recorded(Reason.MACHINE_ALREADY_BOUND, Requester.BOOTSTRAP),
        recorded(Reason.QUOTE_MALFORMED, at=ISSUED),
    )
    since = f"since {rfc3339(NOW)} (2 other reasons: EventLogMissing, AttestorNotAuthorized): see"
    assert since in condition_of_machine(JOINED, replace(ledger(JOINED, refused=BAD), refusals=history), NOW).message
    ended = replace(ledger(JOINED, refused=BAD, ends=NOW), refusals=history[:2])
    assert condition_of_machine(JOINED, ended, NOW).message.endswith(f"{BAD} (1 other reason: EventLogMissing)")
    attested = replace(ledger(JOINED), refusals=history)
    assert condition_of_machine(JOINED, attested, NOW) == condition_of_machine(JOINED, ledger(JOINED), NOW)


@pytest.mark.parametrize(
    "claims",
    [
        RefusedClaims(1, NOW, BAD),
        RefusedClaims(12, NOW, BAD, (Reason.EVENT_LOG_MISSING,)),
        RefusedClaims(3, NOW, BAD, (Reason.EVENT_LOG_MISSING, Reason.ATTESTOR_NOT_AUTHORIZED)),
    ],
)
def test_claims_are_read_back_from_the_message(claims: RefusedClaims) -> None:
    assert parse_refused_claims(condition_of_machine(NEW, None, NOW, claims).message) == claims


@pytest.mark.parametrize("message", ["", "by tpm", str(RefusedClaims(1, NOW, BAD)).replace(str(BAD), "Unknown")])
def test_a_message_that_counts_no_claims_gives_none(message: str) -> None:
    assert parse_refused_claims(message) is None


def test_claims_name_a_few_reasons_the_newest_first() -> None:
    found = RefusedClaims(1, NOW, BAD)
    for reason in [*Reason, BAD]:
        found = found.plus(RefusedClaims(1, NOW, reason))
    assert (found.count, found.reason) == (len(Reason) + 2, BAD)
    assert found.others == tuple(reversed(list(Reason)))[: MAX_REASONS - 1]


def test_what_was_done_to_the_node_is_said() -> None:
    known = ledger(JOINED, refused=Reason.PCR_VALUE_NOT_ALLOWED, treated=FailureAction.CORDON)
    condition = condition_of_machine(JOINED, known, NOW)
    assert condition is not None
    assert condition.message.endswith("its Node was cordoned")


def test_a_reset_is_told() -> None:
    reset = replace(new_attestation(JOINED), resource_version="1", verdict=LastDecision(RESET, "AttestationReset", NOW))
    assert told(condition_of_machine(JOINED, reset, NOW)) == (ConditionStatus.UNKNOWN, "AttestationReset")


def test_refused_claims_are_in_the_message_of_a_machine_that_has_not_joined_and_nowhere_else() -> None:
    claims = RefusedClaims(3, NOW, Reason.ENDORSEMENT_KEY_UNTRUSTED)
    shown = condition_of_machine(NEW, None, NOW, claims)
    assert told(shown) == told(condition_of_machine(NEW, None, NOW))
    assert "3 requests that claim this machine refused since 2026-01-02T03:04:05Z" in shown.message
    assert "EndorsementKeyUntrusted" in shown.message
    for member, known in ((JOINED, ledger(JOINED)), (JOINED, None)):
        assert condition_of_machine(member, known, NOW, claims) == condition_of_machine(member, known, NOW)


def test_a_pool_counts_its_instances() -> None:
    good, ended = ledger(JOINED), ledger(JOINED, ends=NOW)
    failed = ledger(JOINED, refused=Reason.PCR_VALUE_NOT_ALLOWED)
    assert told(condition_of_pool([], NOW)) == (ConditionStatus.UNKNOWN, "NoInstances")
    assert told(condition_of_pool([good, good], NOW)) == (ConditionStatus.TRUE, "Attested")
    some = condition_of_pool([good, None, ended, failed], NOW)
    assert told(some) == (ConditionStatus.FALSE, "InstancesNotAttested")
    assert some.message == "1 of 4 instances attested"
    assert told(condition_of_pool([good, None], NOW)) == (ConditionStatus.UNKNOWN, "InstancesNotAttested")
