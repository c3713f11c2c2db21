"""Metrics: what operators and alerts rely on, and no request can grow them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_controller.metrics import PROVIDERS, VERDICTS, Metrics
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_providers.errors import Reason

RULES = Path(__file__).parents[2] / "manifests/prometheus/rules.yaml"


def value(metrics: Metrics, family: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(family, labels)


class Fired:
    """A timer that calls back at once."""

    def __init__(self, callback: Callable[[], None]) -> None:
        callback()

    def cancel(self) -> None:
        """Too late."""


def series(metrics: Metrics) -> int:
    return sum(1 for line in metrics.render().splitlines() if not line.startswith(b"#"))


def test_a_verdict_is_counted_by_provider_verdict_and_reason() -> None:
    metrics = Metrics()
    metrics.verdict("ns/a", "tpm", "deny", Reason.QUOTE_NOT_BOUND)
    metrics.verdict("ns/a", "tpm", "deny", "QuoteNotBound")
    metrics.verdict("ns/a", "tpm", "approve", "")
    labels = {"provider": "tpm", "verdict": "deny", "reason": "QuoteNotBound"}
    assert value(metrics, "nodeattest_verdicts_total", **labels) == 2
    assert value(metrics, "nodeattest_verdicts_total", provider="tpm", verdict="approve", reason="") == 1


def test_unknown_label_values_count_as_other() -> None:
    metrics = Metrics()
    metrics.verdict("made-up", "made-up", "made-up", "made-up")
    metrics.api_request("made-up", 999)
    metrics.token_write("made-up", "made-up")
    assert value(metrics, "nodeattest_token_writes_total", controller="other", outcome="other") == 1
    assert value(metrics, "nodeattest_verdicts_total", provider="other", verdict="other", reason="other") == 1
    assert value(metrics, "rest_client_requests_total", method="other", code="other") == 1


def test_a_third_party_provider_has_its_own_series_when_named() -> None:
    metrics = Metrics([*PROVIDERS, "acme"])
    metrics.issued("acme")
    assert value(metrics, "nodeattest_issued_total", provider="acme") == 1


def test_requests_cannot_grow_the_number_of_series() -> None:
    metrics = Metrics()

    @given(st.text(), st.text(), st.text(), st.integers())
    def feed(provider: str, verdict: str, reason: str, status: int) -> None:
        metrics.verdict("ns/a", provider, verdict, reason)
        metrics.issued(provider)
        metrics.verification_seconds(provider, 0.1)
        metrics.api_request(verdict, status)

    for provider in ("tpm", "unknown"):
        for verdict in (*VERDICTS, "unknown"):
            for reason in (*Reason, "", "unknown"):
                metrics.verdict("ns/a", provider, verdict, reason)
    feed()
    bound = 2 * 8 * (len(VERDICTS) + 1) * (len(Reason) + 2) + 200
    assert series(metrics) <= bound  # no series ever goes, so this is the most there was


def test_clusters_are_shown_counted_and_forgotten() -> None:
    metrics = Metrics()
    metrics.cluster("ns/a", connected=True)
    metrics.cluster("ns/b", connected=False)
    assert value(metrics, "nodeattest_cluster_connected", cluster="ns/a") == 1
    assert value(metrics, "nodeattest_clusters", state="connected") == 1
    assert value(metrics, "nodeattest_clusters", state="failing") == 1
    metrics.cluster("ns/b", connected=True)
    metrics.requests_passed_over("ns/b", 7)
    metrics.requests_passed_over("ns/b", 1)
    assert value(metrics, "nodeattest_requests_passed_over_total", cluster="ns/b") == 8
    metrics.forget_cluster("ns/a")
    metrics.forget_cluster("ns/a")
    metrics.forget_cluster("never/there")
    assert value(metrics, "nodeattest_cluster_connected", cluster="ns/a") is None
    assert value(metrics, "nodeattest_requests_passed_over_total", cluster="ns/b") == 8
    assert value(metrics, "nodeattest_clusters", state="connected") == 1
    assert value(metrics, "nodeattest_clusters", state="failing") == 0


@pytest.mark.parametrize(("status", "code"), [(200, "200"), (404, "404"), (503, "503"), (None, "<error>")])
def test_api_requests_are_counted_by_method_and_status_as_client_go_does(status: int | None, code: str) -> None:
    metrics = Metrics()
    metrics.api_request("PATCH", status)
    assert value(metrics, "rest_client_requests_total", method="PATCH", code=code) == 1


def test_verdicts_of_a_cluster_begin_at_zero_and_end_with_it() -> None:
    metrics = Metrics()
    metrics.verdict("ns/a", "tpm", "deny", "QuoteNotBound")
    assert value(metrics, "nodeattest_cluster_verdicts_total", cluster="ns/a", verdict="deny") is None  # not shown yet
    metrics.cluster("ns/a", connected=True)
    metrics.verdict("ns/a", "tpm", "deny", "QuoteNotBound")
    assert value(metrics, "nodeattest_cluster_verdicts_total", cluster="ns/a", verdict="deny") == 1
    assert value(metrics, "nodeattest_cluster_verdicts_total", cluster="ns/a", verdict="approve") == 0
    metrics.forget_cluster("ns/a")
    metrics.verdict("ns/a", "tpm", "deny", "QuoteNotBound")
    assert b"cluster_verdicts_total{" not in metrics.render()


async def test_a_work_queue_is_shown_under_the_names_of_client_go() -> None:
    metrics, now = Metrics(), [0.0]
    queue: WorkQueue[str] = WorkQueue(
        clock=lambda: now[0], timer=lambda _delay, callback: Fired(callback), metrics=metrics.queues.named("q")
    )
    queue.add("a")
    queue.add("b")
    queue.add("b")
    assert value(metrics, "workqueue_depth", name="q") == 2
    now[0] = 5.0

    async def work(key: str) -> None:
        now[0] += 0.5
        if key == "b":
            queue.retry("c", None)
            queue.shut_down()

    await queue.run(work, 1)
    assert value(metrics, "workqueue_adds_total", name="q") == 3
    assert value(metrics, "workqueue_retries_total", name="q") == 1
    assert value(metrics, "workqueue_queue_duration_seconds_sum", name="q") == 5.0 + 5.5
    assert value(metrics, "workqueue_work_duration_seconds_sum", name="q") == 1.0
    assert value(metrics, "workqueue_depth", name="q") == 0  # the one that waited was dropped


def test_a_missing_right_is_counted_apart_and_the_alert_counts_nothing_else() -> None:
    metrics = Metrics()
    metrics.api_request("GET", 403)
    metrics.api_request("GET", 404)
    assert value(metrics, "rest_client_requests_total", method="GET", code="403") == 1
    assert value(metrics, "rest_client_requests_total", method="GET", code="404") == 1
    [rule] = [line for line in RULES.read_text().splitlines() if "rest_client_requests_total" in line]
    assert re.findall(r"rest_client_requests_total\{(.*?)\}", rule) == ['code="403"']


def test_state_times_and_counters_show() -> None:
    metrics = Metrics()
    metrics.oldest_request(1.5)
    metrics.leader(leads=True)
    metrics.foreign_challenge()
    metrics.attestation_conflict()
    metrics.token_write("bootstrap-signer", "written")
    metrics.signing_seconds(0.04)
    assert value(metrics, "nodeattest_token_writes_total", controller="bootstrap-signer", outcome="written") == 1
    assert value(metrics, "nodeattest_cluster_info_signing_seconds_bucket", le="0.05") == 1
    metrics.request_age_seconds(-1.0)
    metrics.verification_seconds("tpm", 0.004)
    assert value(metrics, "nodeattest_queue_oldest_seconds") == 1.5
    assert value(metrics, "nodeattest_leader") == 1
    assert value(metrics, "nodeattest_foreign_challenges_total") == 1
    assert value(metrics, "nodeattest_ledger_conflicts_total") == 1
    assert value(metrics, "nodeattest_request_age_seconds_sum") == 0
    assert value(metrics, "nodeattest_verification_seconds_bucket", provider="tpm", le="0.005") == 1


def test_two_instances_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    one.issued("tpm")
    assert value(other, "nodeattest_issued_total", provider="tpm") is None
