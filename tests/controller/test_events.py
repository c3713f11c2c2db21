"""Events: one requester's flood leaves room for another's, and so does one cluster's API server that invents users."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from fake_api import FakeApi

from nodeattest_kube.events import CLUSTER_BURST, NAMESPACE_BURST, SOURCE_BURST, EventRecorder, ObjectRef
from nodeattest_parsing.objects import text


def machine(name: str) -> ObjectRef:
    return ObjectRef(
        api_version="cluster.x-k8s.io/v1beta1", kind="Machine", namespace="default", name=name, uid=f"uid-{name}"
    )


async def test_a_flood_of_events_leaves_room_for_other_requesters_and_clusters() -> None:
    api = FakeApi()
    recorder = EventRecorder(
        api, component="test", instance="here", now=lambda: datetime(2026, 1, 1, tzinfo=UTC), clock=lambda: 1000.0
    )
    for number in range(500):
        recorder.record(machine(f"many-{number}"), "Warning", "MachineNotFound", "junk", source=("fleet/a", "thief"))
    recorder.record(machine("honest-1"), "Warning", "NodeNameMismatch", "a mistake", source=("fleet/a", "node"))
    for number in range(NAMESPACE_BURST + 100):
        source = ("fleet/bad", f"invented-{number}")
        recorder.record(machine(f"bad-{number}"), "Warning", "MachineNotFound", "junk", source=source)
    recorder.record(machine("honest-2"), "Warning", "NodeNameMismatch", "a mistake", source=("fleet/good", "node"))
    await recorder.drain(20)
    found = Counter(text(one, "involvedObject", "name").partition("-")[0] for one in api.objects.values())
    assert found == {"many": SOURCE_BURST, "honest": 2, "bad": CLUSTER_BURST}
