"""The controller's behaviour towards requests, Secrets, replicas and other people's approvals."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from cryptography import x509
from filing_requests import Filed, Wanted, file_request
from polling import eventually
from world import CLUSTER, CSRS, NAMESPACE, Controller, World

from nodeattest_providers.names import ANNOTATION_CHALLENGE, ANNOTATION_REASON, ANNOTATION_SUPPORTED_VERSIONS
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at

SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"


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


def waits_for(filed: Filed, reason: str) -> None:
    eventually(lambda: filed.annotation(ANNOTATION_REASON).startswith(reason), what=f"the wait for {reason}")
    assert filed.state() == ""


def test_a_request_that_is_before_its_machine_waits_and_is_then_issued(world: World) -> None:
    filed = file_request(world, Wanted(node="early"))
    waits_for(filed, "MachineNotFound")
    world.machine("early")
    becomes(filed, "issued")


def test_a_wait_is_bounded(world: World) -> None:
    filed = file_request(world, Wanted(node="never"))
    waits_for(filed, "MachineNotFound")
    becomes(filed, "Denied:MachineNotFound")


def test_a_machine_whose_bootstrap_data_is_not_ready_is_waited_for(world: World) -> None:
    world.machine("slow", ready=False)
    waits_for(file_request(world, Wanted(node="slow")), "MachineNotReady")


@pytest.mark.parametrize("missing", ["tls.key", "the whole Secret"])
def test_a_ca_that_cannot_sign_is_waited_for_and_said(world: World, missing: str) -> None:
    path = f"{SECRETS}/{CLUSTER}-ca"
    good = world.admin.get(path)
    if missing == "tls.key":
        world.admin.patch(path, {"data": {"tls.key": None}})
    else:
        world.admin.delete(path)
    name = "ca-" + missing[0] + missing[-1]
    try:
        world.machine(name.lower())
        filed = file_request(world, Wanted(node=name.lower()))
        waits_for(filed, "AuthorityUnavailable")
        assert "Secret" in filed.annotation(ANNOTATION_REASON)
    finally:
        restore(world, good)
    becomes(filed, "issued")


def restore(world: World, secret: JsonMap) -> None:
    body: JsonMap = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": text_at(secret, "metadata", "name"), "labels": {"cluster.x-k8s.io/cluster-name": CLUSTER}},
        "type": secret["type"],
        "data": secret["data"],
    }
    if any(text_at(one, "metadata", "name") == f"{CLUSTER}-ca" for one in world.admin.list(SECRETS)):
        world.admin.delete(f"{SECRETS}/{CLUSTER}-ca")
    world.admin.create(SECRETS, body)


def test_an_unreadable_kubeconfig_is_said_and_mended_without_a_restart(world: World, controller: Controller) -> None:
    good = world.workload.admin_kubeconfig.read_bytes()
    world.route_workload(b"clusters: [")
    try:
        said = eventually(lambda: controller.said("cannot use the cluster's kubeconfig"), what="the complaint")
        assert text_at(said, "cluster") == f"{NAMESPACE}/{CLUSTER}"
    finally:
        world.route_workload(good)
    world.machine("mended")
    becomes(file_request(world, Wanted(node="mended")), "issued")


def test_somebody_elses_approval_is_no_proof(world: World, controller: Controller) -> None:
    controller.kill()
    try:
        world.machine("human")
        filed = file_request(world, Wanted(node="human"))
        found = filed.read()
        approved: JsonMap = {"type": "Approved", "status": "True", "reason": "Looks", "message": "good"}
        world.workload_admin.replace(f"{CSRS}/{filed.name}/approval", {**found, "status": {"conditions": [approved]}})
    finally:
        controller.start()
    becomes(filed, "Approved")
    eventually(lambda: filed.state() == "Failed:ApprovedElsewhere", what="the refusal to sign")


def test_an_approved_request_of_an_unknown_version_fails_with_the_known_ones(
    world: World, controller: Controller
) -> None:
    controller.kill()
    try:
        filed = file_request(world, Wanted(node="approved", version=2))
        approved: JsonMap = {"type": "Approved", "status": "True", "reason": "Looks", "message": "good"}
        path = f"{CSRS}/{filed.name}/approval"
        world.workload_admin.replace(path, {**filed.read(), "status": {"conditions": [approved]}})
    finally:
        controller.start()
    eventually(lambda: filed.state() == "Failed:EvidenceVersionUnsupported", what="the refusal to sign")
    assert filed.annotation(ANNOTATION_SUPPORTED_VERSIONS) == "insecure/v1"


def test_what_the_creator_wrote_into_our_annotations_counts_for_nothing(world: World) -> None:
    world.machine("annotated")
    forged = {ANNOTATION_CHALLENGE: "{}", ANNOTATION_REASON: "fine", "verified": "true"}
    filed = file_request(world, Wanted(node="annotated", provider_id="sandbox://other"), annotations=forged)
    waits_for(filed, "MachineNotFound")


def test_the_same_key_gets_the_same_certificate_again(world: World) -> None:
    world.machine("again")
    wanted = Wanted(node="again")
    first, second = (file_request(world, wanted) for _ in range(2))
    becomes(first, "issued")
    becomes(second, "issued")
    assert text_at(first.read(), "status", "certificate") == text_at(second.read(), "status", "certificate")
    assert len(list(maps_at(world.ledger("again"), "spec", "issued"))) == 1


def test_another_key_for_an_insecure_machine_is_denied(world: World) -> None:
    world.machine("second-key")
    becomes(file_request(world, Wanted(node="second-key")), "issued")
    becomes(file_request(world, Wanted(node="second-key")), "Denied:MachineAlreadyBound")


def test_one_key_for_two_machines_is_denied(world: World) -> None:
    for name in ("key-a", "key-b"):
        world.machine(name)
    wanted = Wanted(node="key-a")
    becomes(file_request(world, wanted), "issued")
    becomes(file_request(world, Wanted(node="key-b", key=wanted.key)), "Denied:KeyReused")


def test_two_machines_with_one_host_name_are_denied(world: World) -> None:
    for name in ("twin-a", "twin-b"):
        world.machine(name, addresses=[("Hostname", "twin")])
    becomes(file_request(world, Wanted(node="twin", provider_id="sandbox://twin-a")), "Denied:MachineAmbiguous")


@pytest.mark.parametrize(
    ("node", "owner"),
    [("squatted", {"providerID": "sandbox://somebody-else"}), ("nameless", {})],
)
def test_an_existing_node_is_not_taken_over(world: World, node: str, owner: JsonMap) -> None:
    world.machine(node)
    world.workload_admin.create(
        "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": owner}
    )
    becomes(file_request(world, Wanted(node=node)), "Denied:NodeNameTaken")


def test_the_insecure_provider_issues_for_a_year_at_most_and_respects_a_shorter_wish(world: World) -> None:
    world.machine("year")
    filed = file_request(world, Wanted(node="year"))
    becomes(filed, "issued")
    pem = base64.b64decode(text_at(filed.read(), "status", "certificate"))
    certificate = x509.load_pem_x509_certificate(pem)
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert 360 <= lifetime.days <= 366


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


def test_many_requests_for_one_key_at_once_get_one_certificate(world: World) -> None:
    world.machine("crowd")
    wanted, token = Wanted(node="crowd"), world.token()
    filed = [file_request(world, wanted, token=token) for _ in range(8)]
    for one in filed:
        becomes(one, "issued")
    assert len({text_at(one.read(), "status", "certificate") for one in filed}) == 1
    assert len(list(maps_at(world.ledger("crowd"), "spec", "issued"))) == 1


def test_fat_requests_are_ended_and_honest_ones_served_beside_them(world: World) -> None:
    fat = {f"fat-{number}": "x" * 20_000 for number in range(10)}
    token = world.token()
    names = [f"fat-{number}" for number in range(20)]  # one name has a budget, which is another test's
    filed = [file_request(world, Wanted(node=name), token=token, annotations=fat) for name in names]
    world.machine("slim")
    becomes(file_request(world, Wanted(node="slim"), token=token), "issued")
    for one in filed:
        waits_for(one, "MachineNotFound")
        world.workload_admin.delete(f"{CSRS}/{one.name}")


def test_a_version_that_the_signer_does_not_know_is_denied_and_the_known_ones_are_named(world: World) -> None:
    filed = file_request(world, Wanted(node="nobody", version=2))  # and has no Machine, which would be waited for
    becomes(filed, "Denied:EvidenceVersionUnsupported")
    assert filed.annotation(ANNOTATION_SUPPORTED_VERSIONS) == "insecure/v1"


def test_versions_that_a_creator_wrote_are_overwritten(world: World) -> None:
    forged = {ANNOTATION_SUPPORTED_VERSIONS: "insecure/v9999", "other": "stays"}
    filed = file_request(world, Wanted(node="forger", version=9999), annotations=forged)
    becomes(filed, "Denied:EvidenceVersionUnsupported")
    assert filed.annotation(ANNOTATION_SUPPORTED_VERSIONS) == "insecure/v1"
    assert filed.annotation("other") == "stays"


def test_a_provider_that_is_not_authorized_is_told_nothing_about_versions(world: World) -> None:
    filed = file_request(world, Wanted(node="probe", provider="tpm", version=9))
    becomes(filed, "Denied:AttestorNotAuthorized")
    assert filed.annotation(ANNOTATION_SUPPORTED_VERSIONS) == ""
