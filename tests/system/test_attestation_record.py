"""A ledger's life: bound once, reset on record, judged again when it changed, outlived by nobody."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from filing_requests import Wanted, ends, ends_at_last, file_request
from operator_commands import collection_of, made_anew, reset
from polling import eventually
from world import OWN, Controller, World

from nodeattest_controller.model.bound_tokens import bound_group
from nodeattest_providers.names import ANNOTATION_REASON
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.kubernetes_binaries import controller_manager

CLUSTER = "fleet/c1"
pytestmark = pytest.mark.usefixtures("controller")


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["insecure"])
    with world.controller("--leader-elect", "false", log="life.log") as running:
        world.await_service(running)
        yield running


def get_a_node(world: World, machine: JsonMap) -> None:
    name = text_at(machine, "metadata", "name")
    status: JsonMap = {"nodeRef": {"name": name, "uid": f"uid-of-{name}"}}
    world.admin.patch(f"{collection_of(machine)}/{name}/status", {"status": status})


def test_a_machine_with_a_node_joins_again_after_a_reset_and_only_then_and_once(world: World) -> None:
    machine = world.machine("reset-me").machine
    first = Wanted(node="reset-me")
    assert ends(file_request(world, first)) == "issued"
    get_a_node(world, machine)
    assert ends(file_request(world, Wanted(node="reset-me"))) == "Denied:MachineAlreadyBound"
    reset(world, "reset-me", "it burnt")
    ends_at_last(world, lambda: first, "Denied:KeyReused")
    assert ends(file_request(world, Wanted(node="reset-me"))) == "issued"
    assert ends(file_request(world, Wanted(node="reset-me"))) == "Denied:MachineAlreadyBound"
    spec = world.ledger("reset-me")["spec"]
    [entry] = maps_at(spec, "resets")
    assert text_at(entry, "reason") == "it burnt"
    assert text_at(entry, "by")
    assert len(list(maps_at(spec, "issued"))) == len(list(maps_at(spec, "retiredKeys"))) == 1


def test_a_certificate_ends_when_its_request_asked(world: World) -> None:
    world.machine("short")
    filed = file_request(world, Wanted(node="short"), expirationSeconds=3600)
    assert ends(filed) == "issued"
    found = filed.read()
    issued = x509.load_pem_x509_certificate(base64.b64decode(text_at(found, "status", "certificate")))
    assert issued.not_valid_after_utc - datetime.now(UTC) < timedelta(seconds=3600)


def test_a_machine_whose_node_never_attested_is_not_opened_by_a_token(world: World) -> None:
    get_a_node(world, world.machine("brownfield").machine)
    assert ends(file_request(world, Wanted(node="brownfield"))) == "Denied:MachineAlreadyBound"


def test_a_bound_token_is_worth_its_own_machine_even_with_the_insecure_provider(world: World) -> None:
    for name in ("mine", "theirs"):
        world.machine(name)
    group = bound_group(CLUSTER, "sandbox://mine")
    token = fleet.create_bootstrap_token(world.workload_admin, "bound1.0123456789abcdef", groups=[group])
    world.workload.await_token(token)
    stolen = file_request(world, Wanted(node="theirs"), token=token)
    assert ends(stolen) == "Denied:TokenNotThisMachines"
    wrong_name = file_request(world, Wanted(node="theirs", provider_id="sandbox://mine"), token=token)
    assert ends(wrong_name) == "Denied:NodeNameMismatch"
    assert ends(file_request(world, Wanted(node="mine"), token=token)) == "issued"


def test_a_node_cannot_rotate_by_the_insecure_provider(world: World) -> None:
    world.machine("no-rotation")
    assert ends(file_request(world, Wanted(node="no-rotation"))) == "issued"
    node = world.workload.client_kubeconfig("system:node:no-rotation", ["system:nodes"])
    filed = file_request(world, Wanted(node="no-rotation"), kubeconfig=node)
    assert ends(filed) == "Denied:RotationNotAllowed"


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
def test_the_ledger_goes_with_its_machine(world: World) -> None:
    machine = world.machine("mortal").machine
    assert ends(file_request(world, Wanted(node="mortal"))) == "issued"
    [owner] = maps_at(world.ledger("mortal"), "metadata", "ownerReferences")
    assert text_at(owner, "uid") == text_at(machine, "metadata", "uid")
    world.admin.delete(f"{collection_of(machine)}/mortal")
    eventually(lambda: not world.ledger("mortal"), seconds=90, what="the collection")


@pytest.mark.usefixtures("collector")
def test_a_machine_made_anew_under_its_name_waits_for_the_old_ledger_to_go_and_starts_afresh(world: World) -> None:
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


def test_what_others_put_on_a_ledger_stays_when_the_controller_writes_it(world: World) -> None:
    world.machine("labelled")
    assert ends(file_request(world, Wanted(node="labelled"))) == "issued"
    path = f"{OWN}/machineattestations/{text_at(world.ledger('labelled'), 'metadata', 'name')}"
    other: JsonMap = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "u"}
    owners = [*maps_at(world.ledger("labelled"), "metadata", "ownerReferences"), other]
    theirs: JsonMap = {"labels": {"team": "metal"}, "annotations": {"note": "kept"}, "ownerReferences": [*owners]}
    world.admin.patch(path, {"metadata": theirs})
    reset(world, "labelled")
    ends_at_last(world, lambda: Wanted(node="labelled"), "issued")
    ledger = world.ledger("labelled")
    assert text_at(ledger, "metadata", "labels", "team") == "metal"
    assert text_at(ledger, "metadata", "annotations", "note") == "kept"
    assert list(maps_at(ledger, "metadata", "ownerReferences")) == owners
