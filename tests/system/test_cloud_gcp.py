"""Shielded VMs join, renew and serve; the Compute API fails in each way; VMs stop, and are made anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aws_fleet import platform_calls
from cryptography import x509
from gcp_fleet import PROJECT, GcpFleet
from world import Controller, World

from clouds.gcp.cloud import GoogleCloud
from nodeattest_sandbox.apiserver.jsonvalue import map_at, text_at

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
