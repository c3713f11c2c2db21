"""Shielded VMs join, renew and serve; the Compute API fails in each way; VMs stop, and are made anew."""

from __future__ import annotations

import re
import secrets
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from aws_fleet import platform_calls
from cryptography import x509
from gcp_fleet import PROJECT, GcpFleet, pem_of
from polling import eventually
from world import Controller, World

from nodeattest_providers.names import ANNOTATION_REASON
from nodeattest_sandbox.apiserver.jsonvalue import map_at, text_at
from nodeattest_sandbox.clouds.gcp.cloud import CloudSwitches, GoogleCloud

pytestmark = pytest.mark.swtpm

FAULTS = {"down": "unreachable", "failing": "failed", "throttled": "throttled", "slow": "timed_out"}
"""What a project's API does wrong, and how the metric calls it."""
PROJECTS = (PROJECT, *(f"project-{fault}" for fault in FAULTS))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleCloud]:
    with GoogleCloud(tmp_path_factory.mktemp("gcp")) as running:
        yield running


@pytest.fixture(scope="module")
def machines(world: World, cloud: GoogleCloud) -> GcpFleet:
    made = GcpFleet(world, cloud, PROJECTS)
    made.authorize("challenge")
    return made


@pytest.fixture(scope="module")
def controller(machines: GcpFleet) -> Iterator[Controller]:
    with machines.world.controller(*machines.flags("gcp.json"), log="gcp.log") as running:
        machines.world.await_service(running)
        yield running


def test_a_shielded_vm_joins_renews_and_serves_at_its_live_address(
    world: World, machines: GcpFleet, controller: Controller
) -> None:
    instance = machines.launch("gcp-whole", addresses=[("InternalIP", "10.99.99.99")])
    agent = machines.agent(instance)
    joined = agent.join(world.token(), "--serving-ip-address", instance.internal_ip)
    assert joined.returncode == 0, joined.stderr
    ledger = world.ledger("gcp-whole")
    assert text_at(ledger, "spec", "providerID") == instance.provider_id
    assert instance.number in str(map_at(ledger, "spec"))
    serving = x509.load_pem_x509_certificate((agent.directory / "cache" / "serving.pem").read_bytes())
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == [instance.internal_ip]
    first = (agent.directory / "cache" / "credential").read_bytes()
    renewed = agent.join(world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr
    assert (agent.directory / "cache" / "credential").read_bytes() != first
    assert platform_calls(controller)["compute", "ok"] >= 2


@pytest.mark.usefixtures("controller")
def test_an_address_that_only_the_machine_object_claims_is_not_served(world: World, machines: GcpFleet) -> None:
    agent = machines.agent(machines.launch("gcp-stale", addresses=[("InternalIP", "10.99.99.98")]))
    joined = agent.join(world.token(), "--serving-ip-address", "10.99.99.98")
    assert joined.returncode == 1
    assert "AddressNotAllowed" in joined.stderr


@pytest.mark.usefixtures("controller")
def test_a_vm_made_anew_under_the_name_of_one_that_joined_stays_out(world: World, machines: GcpFleet) -> None:
    instance = machines.launch("gcp-anew")
    assert machines.agent(instance).join(world.token()).returncode == 0
    tpm = world.tpm("gcp-another")
    anew = machines.cloud.add(replace(instance, number="909", keys={"encryptionKey": pem_of(tpm)}))
    joined = machines.agent(anew, tpm=tpm, directory="gcp-made-anew").join(world.token())
    assert joined.returncode == 1
    # What the Compute API said two seconds ago still names the old instance, and its endorsement key.
    assert re.search("PlatformInstanceMismatch|EndorsementKeyChanged", joined.stderr), joined.stderr


@pytest.mark.usefixtures("controller")
def test_a_stopped_unlabelled_or_foreign_vm_does_not_join(world: World, machines: GcpFleet) -> None:
    stopped = machines.launch("gcp-stopped")
    stopped.status = "TERMINATED"
    unlabelled = machines.launch("gcp-unlabelled")
    unlabelled.labels = {}
    foreign = machines.launch("gcp-foreign", project="somebodys-project")
    ends = {one.name: machines.agent(one).join(world.token()) for one in (stopped, unlabelled, foreign)}
    assert {name: done.returncode for name, done in ends.items()} == dict.fromkeys(ends, 1)
    assert "PlatformInstanceNotRunning" in ends["gcp-stopped"].stderr
    assert "PlatformTagsNotAllowed" in ends["gcp-unlabelled"].stderr
    assert "PlatformAccountNotAllowed" in ends["gcp-foreign"].stderr


def test_while_one_projects_api_fails_its_machines_wait_others_join_and_the_metric_says_how(
    world: World, machines: GcpFleet, controller: Controller
) -> None:
    switches = machines.cloud.switches
    with ThreadPoolExecutor(len(FAULTS)) as pool:
        joining: list[Future[subprocess.CompletedProcess[str]]] = []
        for fault, outcome in FAULTS.items():
            instance = machines.launch(f"gcp-{fault}", project=f"project-{fault}")
            before = platform_calls(controller).get(("compute", outcome), 0)
            getattr(switches, fault).add(instance.project)
            joining.append(pool.submit(machines.agent(instance).join, world.token(), "--timeout", "150", timeout=180))
            other = machines.agent(machines.launch(f"gcp-beside-{fault}")).join(world.token())
            assert other.returncode == 0, other.stderr
            eventually(
                lambda: platform_calls(controller).get(("compute", outcome), 0) > before,
                what=f"a call that is {outcome}",
            )
            (waiting,) = eventually(
                lambda: [one for one in world.requests_of(instance.name) if _reason(one)],
                what="the word that it waits",
            )
            assert not map_at(waiting, "status").get("conditions")
            assert _reason(waiting).startswith("PlatformUnavailable")
            getattr(switches, fault).clear()
        for one in joining:
            assert one.result().returncode == 0, one.result().stderr


def _reason(request: object) -> str:
    return text_at(request, "metadata", "annotations", ANNOTATION_REASON)  # pyright: ignore[reportArgumentType] - a JSON object


@pytest.mark.usefixtures("controller")
def test_machines_of_other_providers_join_while_google_cloud_is_silent(world: World, machines: GcpFleet) -> None:
    machines.cloud.switches.slow.update(PROJECTS)
    try:
        world.machine("bare-metal")
        secret = world.directory / "bare-metal.secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        data = {"secret": secret.read_text()}
        body = {"metadata": {"name": "bare-metal-attestation"}, "type": "Opaque", "stringData": data}
        world.admin.create("/api/v1/namespaces/fleet/secrets", body)  # pyright: ignore[reportArgumentType] - a JSON object
        joined = world.agent("bare-metal", "challenge", secretFile=str(secret)).join(world.token())
        assert joined.returncode == 0, joined.stderr
    finally:
        machines.cloud.switches = CloudSwitches()
