"""Bare metal without Cluster API: no CRD of its in the management cluster, the same controller and the same rules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from auto_approval_kit import register_node
from filing_requests import Wanted, ends, ends_at_last, file_request
from polling import eventually
from recorded_world import RECORDS, RecordedWorld
from world import NAMESPACE, OWN, Controller, built_world

from nodeattest_controller.model.bound_tokens import bound_group
from nodeattest_providers.names import ANNOTATION_REASON
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import StartControlPlane

FLAGS = ("--inventory", "MachineRecords", "--leader-elect", "false")


@pytest.fixture(scope="module")
def world(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedWorld]:
    directory = tmp_path_factory.mktemp("recorded")
    with built_world(start_control_plane, directory, RecordedWorld, "recorded-") as built:
        yield built


@pytest.fixture(scope="module")
def controller(world: RecordedWorld) -> Iterator[Controller]:
    selector: JsonMap = {"matchLabels": {"site": "cellar"}}
    world.set_policy(authorizedAttestors=["tpm"], clusterSelector=selector, tokenBinding="Off")
    with world.controller(*FLAGS, log="records.log") as running:
        world.await_service(running)
        yield running


def serials(world: RecordedWorld, name: str) -> list[str]:
    return [text_at(entry, "serial") for entry in maps_at(world.ledger(name), "spec", "issued")]


def stands(world: RecordedWorld, name: str) -> tuple[str, str]:
    """Return status and reason of NodeAttested."""
    conditions = list(maps_at(world.admin.get(f"{RECORDS}/{name}"), "status", "conditions"))
    return (text_at(conditions[0], "status"), text_at(conditions[0], "reason")) if conditions else ("", "")


def test_the_management_cluster_has_no_kind_of_cluster_api_s(world: RecordedWorld) -> None:
    with pytest.raises(ApiRefusal) as refused:
        world.admin.get("/apis/cluster.x-k8s.io")
    assert refused.value.code == 404


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
def test_a_recorded_machine_joins_renews_and_is_refused_when_its_record_is_gone(world: RecordedWorld) -> None:
    tpm = world.tpm("unit-1")
    record = world.record("unit-1", tpm=tpm, node="cellar-1")
    agent = world.agent("cellar-1", "tpm", provider_id="sandbox://unit-1", tcti=tpm.tcti)
    joined = agent.join(world.token())
    assert joined.returncode == 0, joined.stderr
    ledger = world.ledger("unit-1")
    assert text_at(ledger, "spec", "nodeName") == "cellar-1"
    assert text_at(ledger, "spec", "fingerprints", "tpm.ek") == tpm.endorsement_fingerprint()
    [owner] = maps_at(ledger, "metadata", "ownerReferences")
    assert (text_at(owner, "kind"), text_at(owner, "uid")) == ("MachineRecord", text_at(record, "metadata", "uid"))
    events = eventually(lambda: told(world, "unit-1", "NodeAttested"), what="the Event")  # of a burst's first node
    assert text_at(events[0], "involvedObject", "kind") == "MachineRecord"
    eventually(lambda: stands(world, "unit-1") == ("True", "Attested"), what="the condition of the record")
    renewed = agent.join(world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr
    issued = serials(world, "unit-1")
    assert len(issued) == 2
    world.admin.delete(f"{RECORDS}/unit-1")
    refused = agent.join(world.token(), "--renew", "--timeout", "20")
    assert refused.returncode != 0
    assert "MachineNotFound" in refused.stderr
    assert serials(world, "unit-1") in ([], issued)  # nobody collects garbage beside an API server alone


def told(world: RecordedWorld, name: str, reason: str) -> list[JsonMap]:
    events = world.admin.list(f"/api/v1/namespaces/{NAMESPACE}/events")
    return [
        one for one in events if text_at(one, "involvedObject", "name") == name and text_at(one, "reason") == reason
    ]


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
def test_another_tpm_than_the_recorded_one_is_refused(world: RecordedWorld) -> None:
    world.record("unit-2", tpm=world.tpm("unit-2"))
    thief = world.tpm("thief")
    joined = world.agent("unit-2", "tpm", directory="thief", tcti=thief.tcti).join(world.token())
    assert joined.returncode != 0
    assert "EndorsementKeyUntrusted" in joined.stderr
    assert not world.ledger("unit-2")


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
def test_a_node_that_joined_before_it_was_recorded_is_adopted_by_its_own_certificate(world: RecordedWorld) -> None:
    register_node(world, "cellar-9", "sandbox://unit-9")
    tpm = world.tpm("unit-9")
    world.record("unit-9", tpm=tpm, node="cellar-9")
    agent = world.agent("cellar-9", "tpm", provider_id="sandbox://unit-9", tcti=tpm.tcti)
    by_token = agent.join(world.token())
    assert "MachineAlreadyBound" in by_token.stderr
    kubeconfig = world.workload.client_kubeconfig("system:node:cellar-9", ["system:nodes"])
    proof = ("--provider", "tpm", "--provider-id", agent.provider_id, "--tcti", tpm.tcti)
    adopted = agent.run("adopt", *proof, "--kubeconfig", str(kubeconfig), *agent.files())
    assert adopted.returncode == 0, adopted.stderr
    assert len(serials(world, "unit-9")) == 1


# What needs no proof: with the insecure provider, so that a plain request will do


@pytest.fixture(scope="module")
def unproven(world: RecordedWorld, controller: Controller) -> Controller:
    world.set_policy(authorizedAttestors=["insecure"], tokenBinding="Off")
    world.record("plain")
    ends_at_last(world, lambda: Wanted(node="plain"), "issued")
    return controller


@pytest.mark.usefixtures("unproven")
def test_a_machine_waits_for_its_spoilt_record_and_joins_when_it_is_corrected(world: RecordedWorld) -> None:
    world.record("unit-3", endorsementkeyhash="x")
    filed = file_request(world, Wanted(node="unit-3"))
    said = eventually(lambda: filed.annotation(ANNOTATION_REASON), what="the wait")
    assert said.startswith("RecordInvalid:")
    world.admin.patch(f"{RECORDS}/unit-3", {"spec": {"endorsementkeyhash": None}})
    assert ends(filed) == "issued"


@pytest.mark.usefixtures("unproven")
def test_one_provider_id_in_two_records_is_nobody_s(world: RecordedWorld) -> None:
    for name in ("twin-a", "twin-b"):
        world.record(name, providerID="sandbox://twins")
    twins = file_request(world, Wanted(node="twin-a", provider_id="sandbox://twins"))
    assert ends(twins) == "Denied:MachineAmbiguous"


@pytest.mark.usefixtures("unproven")
def test_a_node_has_the_name_in_its_record_and_no_other(world: RecordedWorld) -> None:
    world.record("named", node="its-name")
    assert ends(file_request(world, Wanted(node="named"))) == "Denied:NodeNameMismatch"
    assert ends(file_request(world, Wanted(node="its-name", provider_id="sandbox://named"))) == "issued"


@pytest.mark.usefixtures("unproven")
def test_a_bound_token_is_worth_its_own_record(world: RecordedWorld) -> None:
    for name in ("bound-mine", "bound-other"):
        world.record(name)
    group = bound_group(f"{NAMESPACE}/c1", "sandbox://bound-mine")
    token = fleet.create_bootstrap_token(world.workload_admin, "bound7.0123456789abcdef", groups=[group])
    world.workload.await_token(token)
    stolen = file_request(world, Wanted(node="bound-other"), token=token)
    assert ends(stolen) == "Denied:TokenNotThisMachines"
    assert ends(file_request(world, Wanted(node="bound-mine"), token=token)) == "issued"


@pytest.mark.usefixtures("unproven")
def test_no_token_becomes_the_node_that_stood_before_its_machine_was_recorded(world: RecordedWorld) -> None:
    register_node(world, "standing", "sandbox://standing")
    world.record("standing")
    assert ends(file_request(world, Wanted(node="standing"))) == "Denied:MachineAlreadyBound"
    assert not world.ledger("standing")


@pytest.mark.usefixtures("unproven")
def test_a_record_that_names_its_token_takes_no_other(world: RecordedWorld) -> None:
    world.set_policy(authorizedAttestors=["insecure"], tokenBinding="Required")
    token, stolen, numbers = world.token(), world.token(), count()

    def refused() -> str:
        name = f"named-token-{next(numbers)}"  # the controller's watch shows it the new policy in a while
        world.record(name, bootstrapTokenID=token.partition(".")[0])
        ended = ends(file_request(world, Wanted(node=name), token=stolen))
        return name if ended == "Denied:TokenNotThisMachines" else ""

    name = eventually(refused, what="the policy's effect")
    assert ends(file_request(world, Wanted(node=name), token=token)) == "issued"


def test_a_paused_cluster_record_lets_requests_wait(world: RecordedWorld, unproven: Controller) -> None:
    world.record("patient")
    cluster = f"{OWN}/clusterrecords/c1"
    world.admin.patch(cluster, {"spec": {"pause": True}})
    filed = file_request(world, Wanted(node="patient"))
    said = eventually(lambda: filed.annotation(ANNOTATION_REASON), what="the wait")
    assert said.startswith("RecordInvalid:")
    world.admin.patch(cluster, {"spec": {"pause": None}})
    assert ends(filed) == "issued"
    assert "Traceback" not in unproven.log()
