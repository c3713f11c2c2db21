"""The log of workload clusters: fair shares of what they can cause, and the state of each connection."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from io import StringIO

import pytest

from nodeattest_controller import logs
from nodeattest_controller.runtime.cluster_log import (
    AGAIN,
    BURST,
    CONNECTED,
    DISCONNECTED,
    GRANTS_NOTHING,
    OUTAGE_RATE,
    OUTAGES,
    RATE,
    REFUSES,
    REQUESTER_BURST,
    SILENT,
    ClusterLog,
)
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.errors import ApiError, Forbidden, Unauthorized, Unreachable

BLUE, RED = ClusterKey("fleet/blue"), ClusterKey("fleet/red")
LEFT_OUT = "left out log lines about a cluster"
RESET = Unreachable("reset")
BUSY = ApiError(503, "ServiceUnavailable", "no endpoints")


class Rig:
    """A process's log, on a clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.log = ClusterLog(self.clock)
        self._stream = StringIO()

    def clock(self) -> float:
        return self.seconds

    @contextmanager
    def running(self) -> Generator[None]:
        root = logging.getLogger()
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(logs.JsonFormatter())
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)

    def connect(self, server: str = "https://blue.example") -> None:
        self.log.opened(BLUE, server)

    def answers(self, *errors: ApiError | None, every: float = 0.0) -> None:
        """Let requests end, one after another."""
        for error in errors:
            self.seconds += every
            self.log.answered(BLUE, error)

    def entries(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]

    def lines(self) -> list[object]:
        return [entry["msg"] for entry in self.entries()]


@pytest.fixture
def rig() -> Generator[Rig]:
    rig = Rig()
    with rig.running():
        yield rig


# Shares


def test_a_cluster_whose_api_server_invents_requesters_gets_a_few_lines_and_the_rest_is_counted(rig: Rig) -> None:
    allowed = 0
    for number in range(17_769):
        rig.seconds = 75 * number / 17_769
        allowed += rig.log.allows("refused", BLUE, f"user-{number}")
    assert allowed == BURST + int(75 * RATE)
    assert rig.log.allows("refused", RED, "user-1")
    rig.log.report()
    rig.log.report()
    [summary] = rig.entries()
    assert summary.items() >= {"msg": LEFT_OUT, "cluster": BLUE, "line": "refused", "lines": 17_769 - allowed}.items()


def test_a_requester_takes_no_lines_from_another_nor_from_another_message(rig: Rig) -> None:
    flood = [rig.log.allows("refused", BLUE, "system:bootstrap:aaaaaa") for _ in range(10_000)]
    assert sum(flood) == REQUESTER_BURST
    assert rig.log.allows("refused", BLUE, "system:bootstrap:bbbbbb")
    for number in range(10_000):
        rig.log.allows("refused", BLUE, f"user-{number}")
    assert rig.log.allows("overwriting a foreign challenge", BLUE, "system:bootstrap:aaaaaa")


# Connections


def test_connected_is_logged_after_a_granted_request_and_once(rig: Rig) -> None:
    rig.connect()
    assert rig.lines() == []
    rig.answers(None, None, None)
    assert rig.lines() == [CONNECTED]


@pytest.mark.parametrize("error", [Unreachable("no route to host"), Unauthorized(401, "e", "expired")])
def test_that_a_cluster_does_not_answer_is_logged_at_once_and_then_ever_more_rarely(rig: Rig, error: ApiError) -> None:
    rig.connect()
    rig.answers(None, error)
    assert rig.lines() == [CONNECTED, SILENT]
    rig.answers(*[error] * 24 * 60, every=60)
    assert 24 <= rig.lines().count(SILENT) <= 32
    rig.answers(None)
    assert rig.lines()[-1] == CONNECTED


def test_loops_leave_to_the_connections_line_only_what_it_says_and_only_while_it_stands(rig: Rig) -> None:
    rig.connect()
    rig.answers(Unauthorized(401, "e", "whose reason is a letter"))
    assert rig.log.has_reported(BLUE, RESET)
    assert not rig.log.has_reported(BLUE, Forbidden(403, "e", "cannot use a MachineRecord"))
    assert not rig.log.has_reported(RED, RESET)
    rig.answers(None)
    assert not rig.log.has_reported(BLUE, RESET)


def test_after_hours_of_flapping_an_outage_is_logged_within_minutes(rig: Rig) -> None:
    rig.connect()
    rig.answers(*[RESET, None] * 2250, every=2)
    assert len(rig.lines()) <= 2 * (OUTAGES + 9000 * OUTAGE_RATE + 1)
    flapping = len(rig.lines())
    rig.answers(*[RESET] * 150, every=2)
    assert rig.lines()[flapping:][:1] == [SILENT]
    assert 1 / OUTAGE_RATE <= 150 * 2
    rig.answers(None)
    assert rig.lines()[-1] == CONNECTED


def test_a_kubeconfig_that_is_rewritten_again_and_again_makes_few_lines_and_the_last_is_true(rig: Rig) -> None:
    for _ in range(1000):
        rig.connect()
        rig.answers(None, every=0.1)
        rig.log.closed(BLUE)
    assert len(rig.lines()) <= 2 * (OUTAGES + 1)
    assert rig.lines()[-1] == CONNECTED
    rig.seconds += 1 / OUTAGE_RATE
    rig.log.report()
    assert rig.lines()[-1] == DISCONNECTED
    rig.log.report()
    rig.answers(None)
    assert rig.lines()[-1] == DISCONNECTED, "nothing is left of it"


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "may not"), BUSY])
@pytest.mark.parametrize("before", [None, RESET])
def test_a_cluster_that_only_refuses_is_reported_with_its_last_error(
    rig: Rig, error: ApiError, before: ApiError | None
) -> None:
    rig.connect()
    rig.answers(before)
    told = len(rig.lines())
    rig.answers(*[error] * 3, every=GRANTS_NOTHING / 3)
    assert len(rig.lines()) == told
    rig.answers(error, every=GRANTS_NOTHING / 3)
    assert rig.entries()[-1].items() >= {"msg": REFUSES, "error": str(error), "next": AGAIN.initial}.items()
    rig.answers(None)
    assert rig.lines()[-1] == CONNECTED


def test_refusals_among_grants_are_no_outage(rig: Rig) -> None:
    rig.connect()
    rig.answers(*[None, BUSY, BUSY] * 100, every=GRANTS_NOTHING / 3)
    assert rig.lines() == [CONNECTED]
