"""What metrics say of a cluster's machines and certificates: the same as the condition, and bounded."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from node_attested_kit import ISSUED, KEY, NOW, ledger, machine
from node_attested_world import NodeAttestedWorld

from nodeattest_controller.certificate_metrics import REMAINING_BUCKETS, MachineState, counts_of_remaining
from nodeattest_controller.controllers.node_attested.conditions import condition_of_machine
from nodeattest_controller.controllers.node_attested.machine_census import MachineCensus, attestation_state
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.attestation import Attestation, new_attestation
from nodeattest_controller.model.last_decision import RESET, LastDecision
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_providers.errors import Reason

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


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


@pytest.mark.parametrize(("member", "known", "state", "reason"), STATES)
def test_a_state_is_the_condition_in_one_word(
    member: MachineView, known: Attestation | None, state: MachineState, reason: str
) -> None:
    assert attestation_state(member, known, NOW) is state
    assert condition_of_machine(member, known, NOW).reason == reason


def test_the_earliest_end_is_of_the_certificates_that_are_still_good() -> None:
    census = MachineCensus(NOW)
    for number, ends in enumerate((ENDED, NOW + timedelta(hours=3), NOW + timedelta(days=5))):
        census.add(machine(number), ledger(machine(number), ends=ends))
    found = census.result()
    assert found.earliest_end == (NOW + timedelta(hours=3)).timestamp()
    assert found.earliest_lifetime == (NOW + timedelta(hours=3) - ISSUED).total_seconds()
    assert found.states == {MachineState.EXPIRED: 1, MachineState.ATTESTED: 2}
    assert found.remaining == counts_of_remaining([0.0, 3 * 3600.0, 5 * 86400.0])
    assert found.remaining_sum == 3 * 3600 + 5 * 86400


def test_a_bound_is_inclusive_and_the_longest_have_a_bucket() -> None:
    assert counts_of_remaining([0.0, 0.5, 3600.0, 1e12])[:2] == (1, 2)
    assert counts_of_remaining([1e12])[-1] == 1
    assert len(counts_of_remaining([])) == len(REMAINING_BUCKETS) + 1


def test_the_histogram_is_of_all_clusters_and_a_cluster_is_forgotten() -> None:
    metrics = Metrics()
    for key, days in (("ns/a", 1.5), ("ns/b", 400)):
        census = MachineCensus(NOW)
        census.add(ME, ledger(ME, ends=NOW + timedelta(days=days)))
        metrics.certificates.show(key, census.result())
    count = "nodeattest_certificate_remaining_seconds"
    assert value(metrics, f"{count}_gcount") == 2
    assert value(metrics, f"{count}_bucket", le="172800.0") == 1
    assert value(metrics, "nodeattest_machines", cluster="ns/a", state="attested") == 1
    assert value(metrics, "nodeattest_machines", cluster="ns/a", state="expired") == 0
    metrics.forget_standing("ns/a")
    metrics.forget_standing("never/there")
    assert value(metrics, f"{count}_gcount") == 1
    assert value(metrics, "nodeattest_machines", cluster="ns/a", state="attested") is None


async def test_a_clusters_figures_follow_its_machines_and_end_with_the_connection() -> None:
    world = NodeAttestedWorld()
    world.joined(ME, ends=NOW + timedelta(minutes=30))
    world.machine(NEW)
    name, labels = "nodeattest_machines", {"cluster": KEY}
    async with world.running():
        assert value(world.metrics, name, **labels, state="attested") == 1
        assert value(world.metrics, name, **labels, state="pending") == 1
        end = value(world.metrics, "nodeattest_certificate_earliest_end_timestamp_seconds", **labels)
        assert end == (NOW + timedelta(minutes=30)).timestamp()
        await world.resync(3600)
        assert value(world.metrics, name, **labels, state="expired") == 1
        assert value(world.metrics, "nodeattest_certificate_earliest_end_timestamp_seconds", **labels) is None
    assert value(world.metrics, name, **labels, state="expired") is None


def test_version_and_commit_are_a_metric() -> None:
    [sample] = [
        sample for family in Metrics().registry.collect() for sample in family.samples
        if sample.name == "nodeattest_build_info"
    ]  # fmt: skip
    assert sample.value == 1
    assert sample.labels.keys() == {"version", "commit"}
    assert all(sample.labels.values())
