"""What a refusal says of a machine: a table over every reason, and only its own node's word counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from node_attested_kit import refusal

from nodeattest_controller.controllers.node_attested import severity
from nodeattest_controller.controllers.node_attested.severity import DENIAL_SEVERITIES, DenialSeverity, severity_of
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import Purpose

ROOMS = ("providers", "controller")
TREE = Path(__file__).parents[2]
LATE = re.compile(r"Unavailable\(\s*Reason\.([A-Z_]+)")


def test_every_reason_has_one_severity() -> None:
    assert set(DENIAL_SEVERITIES) == set(Reason)
    listed = [*severity._NOTHING, *severity._RENEWAL, *severity._MACHINE]  # pyright: ignore[reportPrivateUsage] - a dict would hide one that stands in two lists
    assert len(listed) == len(set(listed))


def test_reasons_that_end_a_wait_do_not_count_against_a_machine() -> None:
    sources = [path.read_text(encoding="utf-8") for room in ROOMS for path in (TREE / room).rglob("*.py")]
    late = {Reason[name] for source in sources for name in LATE.findall(source)}
    assert Reason.PLATFORM_UNAVAILABLE in late
    assert {reason for reason in late if DENIAL_SEVERITIES[reason] is not DenialSeverity.NOTHING} == set()


@pytest.mark.parametrize("reason", [Reason.PCR_VALUE_NOT_ALLOWED, Reason.ENDORSEMENT_KEY_CHANGED, Reason.PROOF_INVALID])
def test_a_refusal_of_the_machines_own_evidence_counts_against_it(reason: Reason) -> None:
    assert severity_of(refusal(reason)) is DenialSeverity.MACHINE


@pytest.mark.parametrize(
    "reason", [Reason.SUPERSEDED, Reason.CHALLENGE_EXPIRED, Reason.REQUESTER_OVER_BUDGET, Reason.CSR_MALFORMED]
)
def test_a_request_that_was_wrong_late_or_one_too_many_does_not_count_against_a_machine(reason: Reason) -> None:
    assert severity_of(refusal(reason)) is DenialSeverity.NOTHING


def test_nobody_but_the_node_speaks_for_its_machine() -> None:
    for reason in Reason:
        assert severity_of(refusal(reason, by_node=False, username="system:bootstrap:abcdef")) is DenialSeverity.NOTHING


def test_a_request_that_was_not_evaluated_does_not_count_against_a_machine() -> None:
    for reason in Reason:
        assert severity_of(refusal(reason, evaluated=False)) is DenialSeverity.NOTHING


def test_a_refused_serving_certificate_says_something_of_the_machine_or_nothing() -> None:
    found = {severity_of(refusal(reason, purpose=Purpose.SERVING)) for reason in Reason}
    assert found == {DenialSeverity.MACHINE, DenialSeverity.NOTHING}
