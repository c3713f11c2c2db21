"""Events: about the right object, and no flood hides them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from nodeattest_kube.client import ApiClient
from nodeattest_kube.events import (
    CLUSTER_BURST,
    NAMESPACE_BURST,
    SOURCE_BURST,
    EventRecorder,
    ObjectRef,
)
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.control_plane import ControlPlane

EVENTS = "/api/v1/namespaces/default/events"


@pytest.fixture
async def recorder(plane: ControlPlane) -> AsyncGenerator[EventRecorder]:
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        yield EventRecorder(
            client,
            component="test",
            instance="here",
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            clock=lambda: 1000.0,
        )


def machine(name: str) -> ObjectRef:
    return ObjectRef(
        api_version="cluster.x-k8s.io/v1beta1", kind="Machine", namespace="default", name=name, uid=f"uid-{name}"
    )


def about(plane: ControlPlane, name: str) -> list[JsonMap]:
    return [one for one in plane.client().list(EVENTS) if text_at(one, "involvedObject", "name") == name]


async def test_one_requesters_flood_leaves_room_for_anothers_refusals(
    plane: ControlPlane, recorder: EventRecorder
) -> None:
    for number in range(500):
        recorder.record(machine(f"many-{number}"), "Warning", "MachineNotFound", "junk", source=("fleet/a", "thief"))
    recorder.record(machine("honest"), "Warning", "NodeNameMismatch", "a mistake", source=("fleet/a", "node"))
    await recorder.drain(20)
    written = sum(bool(about(plane, f"many-{number}")) for number in range(SOURCE_BURST + 2))
    assert written == SOURCE_BURST
    assert len(about(plane, "honest")) == 1


async def test_requesters_that_a_clusters_api_server_invents_leave_room_for_other_clusters(
    plane: ControlPlane, recorder: EventRecorder
) -> None:
    for number in range(NAMESPACE_BURST + 100):
        source = ("fleet/bad", f"invented-{number}")
        recorder.record(machine(f"bad-{number}"), "Warning", "MachineNotFound", "junk", source=source)
    recorder.record(machine("good"), "Warning", "NodeNameMismatch", "a mistake", source=("fleet/good", "node"))
    await recorder.drain(20)
    listed = plane.client().list(EVENTS)
    assert sum(text_at(one, "involvedObject", "name").startswith("bad-") for one in listed) == CLUSTER_BURST
    assert len(about(plane, "good")) == 1
