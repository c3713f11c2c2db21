"""The controller's behaviour towards requests, Secrets, replicas and other people's approvals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from filing_requests import Filed, Wanted, file_request
from polling import eventually
from world import NAMESPACE, Controller, World

from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["insecure"])
    config = world.directory / "controller.yaml"
    head = "apiVersion: config.nodeattest.x-k8s.io/v1alpha1\nkind: NodeAttestationControllerConfiguration\n"
    config.write_text(head + "waitLimit: 20s\n")
    with world.controller("--config", str(config), "--leader-elect", "false", log="behaviour.log") as running:
        world.await_service(running)
        yield running


pytestmark = pytest.mark.usefixtures("controller")


def becomes(filed: Filed, state: str) -> None:
    """Wait for the one right end of a request; any other end fails at once."""
    ended = eventually(filed.state, what=f"the end of {filed.name}")
    if ended == "Approved" and state == "issued":
        ended = eventually(lambda: filed.state() if filed.state() != "Approved" else "", what="the certificate")
    assert ended == state


def test_a_denial_is_told_to_operators_with_what_was_expected_and_found(world: World) -> None:
    world.machine("told")
    filed = file_request(world, Wanted(node="somebody", provider_id="sandbox://told"))
    becomes(filed, "Denied:NodeNameMismatch")
    events = f"/api/v1/namespaces/{NAMESPACE}/events"
    event = eventually(
        lambda: next((e for e in world.admin.list(events) if filed.name in text_at(e, "message")), None),
        what="the Event",
    )
    assert text_at(event, "reason") == "NodeNameMismatch"
    assert (text_at(event, "involvedObject", "kind"), text_at(event, "involvedObject", "name")) == ("Machine", "told")
    assert "expected told" in text_at(event, "message")
    condition = next(maps_at(filed.read(), "status", "conditions"))
    assert "told" not in text_at(condition, "message")
