"""What operators hear of the token controllers: once a minute, counted always, a missing right with its remedy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from nodeattest_controller.controllers.bootstrap_signer import (
    REASON,
    REMEDY,
    TokenPairEvents,
)
from nodeattest_controller.logs import JsonFormatter
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.cluster_log import PERIOD, ClusterEvents
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_discovery.controllers.deps import TokenController
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, Unreachable
from nodeattest_kube.events import EventRecorder, ObjectRef
from nodeattest_parsing.values import JsonObject

KEY = ClusterKey("fleet/blue")
CLUSTER: JsonObject = {
    "apiVersion": "cluster.x-k8s.io/v1beta1",
    "metadata": {"namespace": "fleet", "name": "blue", "uid": "u-1"},
}


@dataclass
class Inventory:
    """A management cluster with one Cluster."""

    def cluster(self, key: ClusterKey) -> JsonObject | None:
        return CLUSTER if key == KEY else None


@dataclass
class Recorded:
    """Keeps Events."""

    events: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    def record(self, subject: ObjectRef, kind: str, reason: str, message: str) -> None:
        assert subject.name == "blue"
        self.events.append((kind, reason, message))


class Rig:
    """A reporter and all that it tells."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.recorded = Recorded()
        self.metrics = Metrics()
        events = ClusterEvents(
            KEY,
            cast("ManagementCache", Inventory()),
            cast("EventRecorder", self.recorded),
            log=logging.getLogger("test"),
            clock=lambda: self.seconds,
        )
        self.reporter = TokenPairEvents(events, self.metrics)

    def count(self, controller: TokenController, outcome: str) -> float:
        labels = {"controller": str(controller), "outcome": outcome}
        return self.metrics.registry.get_sample_value("nodeattest_token_writes_total", labels) or 0.0


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the lines of the log so far, as they are written."""
    caplog.set_level(logging.INFO)
    return lambda: [JsonFormatter().format(record) for record in caplog.records]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Conflict(409, "Conflict", "changed"), "conflict"),
        (Forbidden(403, "Forbidden", "no"), "forbidden"),
        (Unreachable("no route"), "unreachable"),
        (ApiError(500, "InternalError", "sorry"), "refused"),
    ],
)
def test_a_failed_write_is_counted_by_its_kind(error: ApiError, outcome: str) -> None:
    rig = Rig()
    for controller in TokenController:
        rig.reporter.failed(controller, error, 1.0)
        assert rig.count(controller, outcome) == 1


def test_a_missing_right_is_told_on_the_cluster_once_in_ten_minutes(logged: Callable[[], list[str]]) -> None:
    rig = Rig()
    refusal = Forbidden(403, "Forbidden", "may not update configmaps")
    for _ in range(3):
        rig.reporter.failed(TokenController.SIGNER, refusal, 1.0)
        rig.reporter.may_not_watch(refusal)
    assert [(kind, reason) for kind, reason, _ in rig.recorded.events] == [("Warning", REASON)] * 2
    assert all("may not update configmaps" in message and REMEDY in message for *_, message in rig.recorded.events)
    assert all(REMEDY in line for line in logged())
    rig.seconds += PERIOD
    rig.reporter.may_not_watch(refusal)
    assert len(rig.recorded.events) == 3
