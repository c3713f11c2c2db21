"""A ledger's life: bound once, reset on record, judged again when it changed, outlived by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from filing_requests import Wanted, ends, file_request
from needs import not_possible
from operator_commands import made_anew
from polling import eventually
from world import OWN, Controller, World

from nodeattest_providers.identifiers import ANNOTATION_REASON
from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at
from nodeattest_sandbox.control_plane import controller_manager

pytestmark = pytest.mark.usefixtures("controller")


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["insecure"])
    with world.controller("--leader-elect", "false", log="life.log") as running:
        world.await_service(running)
        yield running


@pytest.fixture
def collector(world: World, request: pytest.FixtureRequest) -> Iterator[None]:
    """Whoever collects what lost its owner: the sandbox by itself, beside a real API server a program of its own."""
    if "kube-apiserver" not in world.management.pids:
        yield
        return
    assets: Path = request.getfixturevalue("assets")
    with controller_manager(world.management, assets, ("garbagecollector",)):
        yield


@pytest.mark.usefixtures("collector")
def test_a_machine_made_anew_under_its_name_waits_for_the_old_ledger_to_go_and_starts_afresh(
    world: World, control_plane_kind: str
) -> None:
    if control_plane_kind == "sandbox":
        not_possible("the sandbox collects no garbage")
    machine = world.machine("phoenix").machine
    assert ends(file_request(world, Wanted(node="phoenix"))) == "issued"
    path = f"{OWN}/machineattestations/{text_at(world.ledger('phoenix'), 'metadata', 'name')}"
    world.admin.patch(path, {"metadata": {"finalizers": ["tests.example/slow-collector"]}})
    again = made_anew(world, machine)
    filed = file_request(world, Wanted(node="phoenix"))
    eventually(lambda: filed.annotation(ANNOTATION_REASON).startswith("MachineNotReady"), what="the wait")
    marked = ("metadata", "deletionTimestamp")
    eventually(lambda: text_at(world.ledger("phoenix"), *marked), seconds=90, what="the collector")
    world.admin.patch(path, {"metadata": {"finalizers": []}})
    end = eventually(lambda: filed.state().removeprefix("Approved"), seconds=90, what="the end of the wait")
    assert end == "issued"
    ledger = world.ledger("phoenix")
    [owner] = maps_at(ledger, "metadata", "ownerReferences")
    assert text_at(owner, "uid") == text_at(again, "metadata", "uid")
    assert len(list(maps_at(ledger, "spec", "issued"))) == 1
