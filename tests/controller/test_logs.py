"""Logs: one line a record, plain values only."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_controller.logs import JsonFormatter, TextFormatter, fields
from nodeattest_controller.runtime import cluster_log
from nodeattest_controller.runtime.cluster_log import BURST, CONNECTED, OUTAGES, RATE, SILENT, ClusterLog
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.errors import ApiError, Unauthorized, Unreachable
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Evidence, SecretBytes


def line(formatter: logging.Formatter, message: str, **values: object) -> str:
    record = logging.LogRecord("room.module", logging.INFO, "", 0, message, (), None)
    record.created = 1_700_000_000.25
    record.__dict__.update(fields(**values))
    return formatter.format(record)


def parsed(message: str, **values: object) -> dict[str, object]:
    entries: dict[str, object] = json.loads(line(JsonFormatter(), message, **values))
    return entries


def test_a_json_record_says_when_how_bad_where_what_and_about_what() -> None:
    assert parsed("approved", cluster="ns/name", reason=Reason.REPLAYED, seconds=0.5, first=True, none=None) == {
        "ts": "2023-11-14T22:13:20.250000Z",
        "level": "info",
        "logger": "room.module",
        "msg": "approved",
        "cluster": "ns/name",
        "reason": "Replayed",
        "seconds": 0.5,
        "first": True,
        "none": None,
    }


@given(st.text(), st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text() | st.floats() | st.binary()))
def test_no_value_breaks_the_line(message: str, values: dict[str, object]) -> None:
    for formatter in (JsonFormatter(), TextFormatter()):
        written = line(formatter, message.replace("%", ""), **values)
        assert len(written.splitlines()) == 1
        written.encode("ascii" if isinstance(formatter, JsonFormatter) else "utf-8", "strict")
    assert isinstance(parsed(message.replace("%", ""), **values), dict)


def test_bytes_secrets_and_evidence_show_as_their_type_only() -> None:
    secret = b"\x00very secret"
    evidence = Evidence(ProviderName("tpm"), 1, {"quote": "very secret"})
    written = line(
        JsonFormatter(),
        "refused",
        raw=secret,
        wrapped=SecretBytes(secret),
        evidence=evidence,
        nested={"deep": [secret, {"deeper": evidence}]},
        request="-----BEGIN CERTIFICATE REQUEST-----\nvery secret",
    )
    assert "secret" not in written.lower().replace("secretbytes", "")
    assert json.loads(written)["nested"] == {"deep": ["<bytes>", {"deeper": "<Evidence>"}]}
    assert json.loads(written)["request"] == "<PEM>"


# The log of workload clusters: fair shares of what they can cause, and the state of each connection


BLUE, RED = ClusterKey("fleet/blue"), ClusterKey("fleet/red")
LEFT_OUT = "left out log lines about a cluster"


class Rig:
    """A process's log, on a clock that the test moves."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.seconds = 0.0
        self.log = ClusterLog(lambda: self.seconds)
        self.caplog = caplog

    def connect(self) -> None:
        self.log.opened(BLUE, "https://blue.example")

    def answers(self, *errors: ApiError | None, every: float = 0.0) -> None:
        for error in errors:
            self.seconds += every
            self.log.answered(BLUE, error)

    def lines(self) -> list[str]:
        return self.caplog.messages


@pytest.fixture
def rig(caplog: pytest.LogCaptureFixture) -> Rig:
    caplog.set_level(logging.INFO)
    return Rig(caplog)


def test_a_cluster_whose_api_server_invents_requesters_gets_a_few_lines_and_the_rest_is_counted(rig: Rig) -> None:
    allowed = 0
    for number in range(17_769):
        rig.seconds = 75 * number / 17_769
        allowed += rig.log.allows("refused", BLUE, f"user-{number}")
    assert allowed == BURST + int(75 * RATE)
    assert rig.log.allows("another line", BLUE, "user-1")
    assert [rig.log.allows("of no request", BLUE) for _ in range(BURST + 1)].count(True) == BURST
    assert rig.log.allows("refused", RED, "user-1")
    rig.log.report()
    rig.log.report()
    summary, _of_no_request = rig.caplog.records
    assert summary.getMessage() == LEFT_OUT
    assert summary.__dict__ | fields(cluster=BLUE, line="refused", lines=17_769 - allowed) == summary.__dict__


@pytest.mark.parametrize("error", [Unreachable("no route to host"), Unauthorized(401, "e", "expired")])
def test_that_a_cluster_does_not_answer_is_logged_at_once_and_then_ever_more_rarely(rig: Rig, error: ApiError) -> None:
    rig.connect()
    rig.answers(None, error)
    assert rig.lines() == [CONNECTED, SILENT]
    rig.answers(*[error] * 24 * 60, every=60)
    assert 24 <= rig.lines().count(SILENT) <= 32
    rig.answers(None)
    assert rig.lines()[-1] == CONNECTED


def test_a_kubeconfig_that_changes_all_the_time_gets_a_few_lines(rig: Rig) -> None:
    for _ in range(100):
        rig.connect()
        rig.answers(None)
        rig.log.closed(BLUE)
    assert len(rig.lines()) == OUTAGES


def test_a_requester_has_a_few_of_a_clusters_lines() -> None:
    log = cluster_log.ClusterLog(lambda: 0.0)
    lines = [log.allows("m", ClusterKey("fleet/blue"), "a") for _ in range(2 * cluster_log.REQUESTER_BURST)]
    assert lines.count(True) == cluster_log.REQUESTER_BURST
    assert log.allows("m", ClusterKey("fleet/blue"), "b")
