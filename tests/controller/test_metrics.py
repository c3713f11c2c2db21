"""Metrics: what operators and alerts rely on, and no request can grow them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_attested_world import ISSUED, NOW, ledger, machine

from nodeattest_controller.controllers.node_attested.conditions import condition_of_machine
from nodeattest_controller.controllers.node_attested.reconciler import MachineCensus
from nodeattest_controller.metrics import VERDICTS, MachineState, Metrics
from nodeattest_controller.model.attestation import Attestation, new_attestation
from nodeattest_controller.model.attestation_status import RESET, LastDecision
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_providers.errors import Reason

RULES = Path(__file__).parents[2] / "manifests/prometheus/rules.yaml"


def value(metrics: Metrics, family: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(family, labels)


def series(metrics: Metrics) -> int:
    return sum(1 for line in metrics.render().splitlines() if not line.startswith(b"#"))


def test_requests_cannot_grow_the_number_of_series() -> None:
    metrics = Metrics()

    @given(st.text(), st.text(), st.text(), st.integers())
    def feed(provider: str, verdict: str, reason: str, status: int) -> None:
        metrics.verdict(provider, verdict, reason)
        metrics.issued(provider)
        metrics.verification_seconds(provider, 0.1)
        metrics.api_request(verdict, status)

    for provider in ("tpm", "unknown"):
        for verdict in (*VERDICTS, "unknown"):
            for reason in (*Reason, "", "unknown"):
                metrics.verdict(provider, verdict, reason)
    feed()
    bound = 2 * 8 * (len(VERDICTS) + 1) * (len(Reason) + 2) + 200
    assert series(metrics) <= bound  # no series ever goes, so this is the most there was


def test_the_series_of_a_cluster_go_with_it() -> None:
    metrics, key = Metrics(), "fleet/blue"
    metrics.cluster(key, connected=True)
    metrics.requests_passed_over(key, 1)
    metrics.auto_approval_closed(key, closed=True)
    metrics.in_tree_certificate(key)
    metrics.standing(key, failing=1, treated=1, withheld=0)
    metrics.machines(key, {}, (1.0, 1.0))
    assert key.encode() in metrics.render()
    metrics.forget_cluster(key)
    metrics.forget_standing(key)
    assert key.encode() not in metrics.render()


def test_a_missing_right_is_counted_apart_and_the_alert_counts_nothing_else() -> None:
    metrics = Metrics()
    metrics.api_request("GET", 403)
    metrics.api_request("GET", 404)
    assert value(metrics, "rest_client_requests_total", method="GET", code="403") == 1
    assert value(metrics, "rest_client_requests_total", method="GET", code="404") == 1
    [rule] = [line for line in RULES.read_text().splitlines() if "rest_client_requests_total" in line]
    assert re.findall(r"rest_client_requests_total\{(.*?)\}", rule) == ['code="403"']


# What metrics say of a cluster's machines and certificates: the same as the condition, and bounded


BAD = Reason.PCR_VALUE_NOT_ALLOWED
ME, NEW = machine(0), machine(2, node=False)
ENDED = NOW - timedelta(seconds=1)
STATES: list[tuple[MachineView, Attestation | None, MachineState, str]] = [
    (ME, ledger(ME), MachineState.ATTESTED, "Attested"),
    (ME, ledger(ME, refused=BAD), MachineState.REFUSED, BAD),
    (ME, ledger(ME, refused=BAD, ends=ENDED), MachineState.EXPIRED, "CertificateExpired"),
    (ME, ledger(ME, ends=NOW), MachineState.EXPIRED, "CertificateExpired"),
    (ME, replace(new_attestation(ME), verdict=LastDecision(RESET, "")), MachineState.RESET, "AttestationReset"),
    (ME, None, MachineState.NOT_ATTESTED, "NotAttested"),
    (NEW, None, MachineState.PENDING, "NotYetAttested"),
    (NEW, new_attestation(NEW), MachineState.PENDING, "NotYetAttested"),
]


def shown(census: MachineCensus) -> tuple[dict[str, float | None], float | None, float | None]:
    """Return the counts that are not 0, and the end and lifetime of the first certificate."""
    metrics, key = Metrics(), "fleet/blue"
    census.show(metrics, ClusterKey(key))
    counts = {state: value(metrics, "nodeattest_machines", cluster=key, state=state) for state in MachineState}
    first = "nodeattest_certificate_earliest_"
    end = value(metrics, f"{first}end_timestamp_seconds", cluster=key)
    lifetime = value(metrics, f"{first}lifetime_seconds", cluster=key)
    return {str(state): count for state, count in counts.items() if count}, end, lifetime


@pytest.mark.parametrize(("member", "known", "state", "reason"), STATES)
def test_a_state_is_the_condition_in_one_word(
    member: MachineView, known: Attestation | None, state: MachineState, reason: str
) -> None:
    census = MachineCensus(NOW)
    census.add(member, known)
    assert shown(census)[0] == {state: 1}
    assert condition_of_machine(member, known, NOW).reason == reason


def test_the_earliest_end_is_of_the_certificates_that_are_still_good() -> None:
    census, soon = MachineCensus(NOW), NOW + timedelta(hours=3)
    for number, ends in enumerate((ENDED, soon, NOW + timedelta(days=5))):
        census.add(machine(number), ledger(machine(number), ends=ends))
    assert shown(census) == ({"expired": 1, "attested": 2}, soon.timestamp(), (soon - ISSUED).total_seconds())
