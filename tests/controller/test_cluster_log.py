"""The log lines about workload clusters: named, few from each, and one reporter for a cluster that does not answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from io import StringIO

import pytest

from nodeattest_controller import logs
from nodeattest_controller.logs import fields
from nodeattest_controller.runtime.cluster_log import (
    AGAIN,
    ALWAYS,
    BURST,
    CURRENT_CLUSTER,
    HEALTHY,
    RATE,
    ClusterConnection,
    ClusterLog,
)
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.client import ApiError, Unauthorized, Unreachable

BLUE, RED = ClusterKey("fleet/blue"), ClusterKey("fleet/red")
LOG = logging.getLogger("nodeattest_kube.reflector")


class Rig:
    """A process's log, on a clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.log = ClusterLog(self.clock)
        self.blue = ClusterConnection(self.log, BLUE, "https://blue.example", clock=self.clock)
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
            with self.log.attached():
                yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)

    def lines(self, cluster: str | None = BLUE) -> list[str]:
        """Return the messages about a cluster."""
        entries = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        return [entry["msg"] for entry in entries if entry.get("cluster") == cluster]


@pytest.fixture
def rig() -> Generator[Rig]:
    rig = Rig()
    with rig.running():
        yield rig


def test_a_cluster_that_floods_the_log_gets_a_few_lines_and_one_that_sums_up_the_rest(rig: Rig) -> None:
    for number in range(17_769):
        rig.seconds = 75 * number / 17_769
        LOG.warning("refused", extra=fields(cluster=BLUE, csr=f"r-{number}"))
    LOG.warning("refused", extra=fields(cluster=RED))
    LOG.warning("not about a cluster")
    rig.log.report()
    written = BURST + int(75 * RATE)
    assert rig.lines() == ["refused"] * written + ["left out log lines about a cluster"]
    assert (rig.lines(RED), rig.lines(None)) == (["refused"], ["not about a cluster"])
    rig.log.report()
    assert len(rig.lines()) == written + 1, "nothing was left out since"


def test_a_flood_displaces_no_line_about_a_certificate(rig: Rig) -> None:
    for _ in range(2 * BURST):
        LOG.warning("refused", extra=fields(cluster=BLUE))
    LOG.info("issued", extra=fields(cluster=BLUE) | {ALWAYS: True})
    assert rig.lines()[-1] == "issued"


async def test_a_line_that_a_clusters_task_writes_has_its_name(rig: Rig) -> None:
    async def follow() -> None:
        CURRENT_CLUSTER.set(BLUE)
        LOG.warning("cannot follow %s: %s", "https://blue.example/api/v1/secrets", "500 InternalError")

    await asyncio.create_task(follow())
    LOG.warning("another task's")
    assert rig.lines() == ["cannot follow https://blue.example/api/v1/secrets: 500 InternalError"]


@pytest.mark.parametrize("error", [Unreachable("no route to host"), Unauthorized(401, "Unauthorized", "expired")])
def test_of_a_cluster_that_does_not_answer_one_reporter_says_so_rarely(rig: Rig, error: ApiError) -> None:
    for _ in range(24 * 60):
        rig.seconds += 60
        rig.blue.answered(error)
        LOG.warning("cannot follow %s: %s", "https://blue.example/api/v1/secrets", error)
        LOG.warning("will try again", extra=fields(cluster=BLUE, error=error.reason))
    assert 24 <= rig.lines().count("cluster does not answer") == len(rig.lines()) <= 32
    rig.blue.answered(None)
    LOG.warning("refused", extra=fields(cluster=BLUE))
    assert rig.lines()[-2:] == ["connected", "refused"]


def test_connected_is_said_once_and_again_only_after_an_outage_that_was_reported(rig: Rig) -> None:
    assert rig.lines() == []
    for _ in range(3):
        rig.blue.answered(None)
    assert rig.lines() == ["connected"]
    for _ in range(100):  # it flaps
        rig.seconds += 0.1
        rig.blue.answered(Unreachable("reset"))
        rig.blue.answered(None)
    assert rig.lines() == ["connected", "cluster does not answer", "connected"]
    rig.seconds += HEALTHY + AGAIN.cap
    rig.blue.answered(Unreachable("reset"))
    assert rig.lines()[-1] == "cluster does not answer"


def test_what_a_cluster_is_refused_for_otherwise_is_written_during_an_outage(rig: Rig) -> None:
    rig.blue.answered(Unreachable("reset"))
    LOG.warning("cannot use a MachineRecord", extra=fields(cluster=BLUE, detail="spec.nodeName: expected a name"))
    assert rig.lines()[-1] == "cannot use a MachineRecord"
