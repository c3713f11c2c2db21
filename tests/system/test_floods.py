"""Floods and duplicates: who files too much waits and is told, everybody else is served, and nothing stays pending."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from filing_requests import Wanted, file_request
from polling import eventually
from world import CSRS, Controller, World

from nodeattest_controller.controllers.csr.request_limiter import NODE_BURST
from nodeattest_providers.names import ANNOTATION_REASON


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["insecure"])
    config = world.directory / "floods.yaml"
    head = "apiVersion: config.nodeattest.x-k8s.io/v1alpha1\nkind: NodeAttestationControllerConfiguration\n"
    config.write_text(head + "waitLimit: 20s\n")
    with world.controller("--config", str(config), "--leader-elect", "false", log="floods.log") as running:
        world.await_service(running)
        yield running


def test_a_flood_waits_is_told_and_ends_while_others_join(world: World, controller: Controller) -> None:
    token, over = world.token(), 30
    flood = [file_request(world, Wanted(node="nowhere"), token=token) for _ in range(NODE_BURST + over)]
    world.machine("beside")
    beside = file_request(world, Wanted(node="beside"))
    same_token = file_request(world, Wanted(node="beside-2"), token=token)
    world.machine("beside-2")
    for honest in (beside, same_token):
        eventually(lambda honest=honest: honest.state() == "issued", what="a certificate beside the flood")
    eventually(
        lambda: any(one.annotation(ANNOTATION_REASON).startswith("RequesterOverBudget") for one in flood),
        what="the reason in an annotation",
    )
    shed = partial(controller.metric, "nodeattest_verdicts_total", 'verdict="shed"')
    eventually(lambda: shed() >= over / 2, what="those over the budget, but for what became free meanwhile", state=shed)
    eventually(lambda: controller.said("over budget"), what="the log line")
    for one in flood:
        eventually(one.state, what="the end of a request of the flood")
    ends = {one.state() for one in flood}
    assert "Denied:RequesterOverBudget" in ends
    assert ends <= {"Denied:RequesterOverBudget", "Denied:MachineNotFound"}


@pytest.mark.usefixtures("controller")
def test_older_duplicates_end_once_a_newer_request_has_its_certificate(world: World) -> None:
    token, other = world.token(), world.token()
    lost = Wanted(node="twice", provider_id="sandbox://nobody")
    older, anothers = file_request(world, lost, token=token), file_request(world, lost, token=other)
    for one in (older, anothers):
        eventually(lambda one=one: one.annotation(ANNOTATION_REASON), what="the wait")
    world.machine("twice")
    wanted = Wanted(node="twice")
    copy, newer = (file_request(world, wanted, token=token) for _ in range(2))
    for one in (copy, newer):
        eventually(lambda one=one: one.state() == "issued", what="the certificate")
    eventually(lambda: older.state() == "Denied:Superseded", what="the end of the older one")
    assert anothers.state() == ""
    world.workload_admin.delete(f"{CSRS}/{anothers.name}")
