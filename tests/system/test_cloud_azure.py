"""Virtual machines of Azure join, renew and serve; Azure throttles, fails and hangs; many come at once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from aws_fleet import platform_calls
from azure_fleet import AzureFleet
from cryptography import x509
from polling import eventually
from world import Controller, World

from nodeattest_providers.names import ANNOTATION_REASON
from nodeattest_sandbox.apiserver.jsonvalue import map_at, text_at
from nodeattest_sandbox.clouds.azure.cloud import SandboxAzure
from nodeattest_sandbox.clouds.azure.state import Switches

FAULTS = {
    "throttled": (Switches(throttled=1), "throttled"),
    "down": (Switches(down=True), "failed"),
}
"""What the Resource Manager does wrong, and how the metric calls it."""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxAzure]:
    with SandboxAzure(tmp_path_factory.mktemp("azure")) as running:
        yield running


@pytest.fixture(scope="module")
def machines(world: World, cloud: SandboxAzure) -> AzureFleet:
    made = AzureFleet(world, cloud)
    made.authorize()
    return made


@pytest.fixture(scope="module")
def controller(machines: AzureFleet) -> Iterator[Controller]:
    with machines.world.controller(*machines.flags("azure.json"), log="azure.log") as running:
        machines.world.await_service(running)
        yield running


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize("scale_set", [None, "Pool"])
def test_a_machine_joins_renews_and_serves_at_its_live_address(
    world: World, machines: AzureFleet, scale_set: str | None
) -> None:
    name = f"azure-{scale_set or 'whole'}".lower()
    machine = machines.launch(name, scale_set=scale_set, addresses=[("InternalIP", "10.99.99.97")])
    agent = machines.agent(machine)
    joined = agent.join(world.token(), "--serving-ip-address", machine.address)
    assert joined.returncode == 0, joined.stderr
    assert text_at(world.ledger(name), "spec", "providerID") == machine.provider_id
    serving = x509.load_pem_x509_certificate((agent.directory / "cache" / "serving.pem").read_bytes())
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == [machine.address]
    first = (agent.directory / "cache" / "credential").read_bytes()
    renewed = agent.join(world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr
    assert (agent.directory / "cache" / "credential").read_bytes() != first


@pytest.mark.usefixtures("controller")
def test_an_address_that_azure_does_not_tell_is_not_served(world: World, machines: AzureFleet) -> None:
    machine = machines.launch("azure-stale", addresses=[("InternalIP", "10.99.99.96")])
    agent = machines.agent(machine)
    joined = agent.join(world.token(), "--serving-ip-address", "10.99.99.96")
    assert joined.returncode == 1
    assert "AddressNotAllowed" in joined.stderr


@pytest.mark.parametrize("what", FAULTS)
def test_while_azure_fails_its_machines_wait_the_metric_says_how_and_they_join_after(
    world: World, machines: AzureFleet, controller: Controller, what: str
) -> None:
    switches, outcome = FAULTS[what]
    machine = machines.launch(f"azure-{what}")
    before = platform_calls(controller).get(("machines", outcome), 0)
    machines.cloud.state.switches = switches
    with ThreadPoolExecutor(1) as pool:
        joining: Future[subprocess.CompletedProcess[str]] = pool.submit(
            machines.agent(machine).join, world.token(), "--timeout", "150", timeout=180
        )
        try:
            eventually(
                lambda: platform_calls(controller).get(("machines", outcome), 0) > before, what="the failed call"
            )
            (waiting,) = world.requests_of(machine.computer_name)
            assert not map_at(waiting, "status").get("conditions")
            eventually(
                lambda: text_at(
                    world.requests_of(machine.computer_name)[0], "metadata", "annotations", ANNOTATION_REASON
                ).startswith("PlatformUnavailable"),
                what="the reason",
            )
        finally:
            machines.cloud.state.switches = Switches()
        assert joining.result().returncode == 0, joining.result().stderr


@pytest.mark.usefixtures("controller")
def test_a_scale_up_costs_azure_a_few_calls(world: World, machines: AzureFleet) -> None:
    fleet = [machines.launch(f"azure-many-{number}") for number in range(12)]
    token = world.token()
    machines.cloud.state.calls.clear()
    with ThreadPoolExecutor(6) as pool:
        joining = [pool.submit(machines.agent(machine).join, token, timeout=180) for machine in fleet]
        ended = [one.result() for one in joining]
    assert [one.returncode for one in ended] == [0] * len(fleet), ended[0].stderr
    lists = [call for call in machines.cloud.state.calls if "/virtualMachines?" in call]
    assert len(lists) < len(fleet)


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize(("minutes", "joins"), [(-6, False), (6, False), (-4, True), (4, True)])
def test_a_clock_may_be_wrong_by_five_minutes_and_more_is_told_with_the_remedy(
    world: World, machines: AzureFleet, minutes: int, *, joins: bool
) -> None:
    machine = machines.launch(f"azure-clock-{minutes % 60}")
    signing = machines.cloud.signing
    honest = signing.now
    signing.now = lambda: datetime.now(UTC) + timedelta(minutes=minutes)
    try:
        ended = machines.agent(machine).join(world.token())
    finally:
        signing.now = honest
    assert (ended.returncode == 0) is joins, ended.stderr
    if not joins:
        assert "PlatformProofExpired" in ended.stderr
        assert "clock" in ended.stderr


@pytest.mark.usefixtures("controller")
def test_a_machine_without_tag_or_life_and_one_that_is_another_do_not_join(world: World, machines: AzureFleet) -> None:
    untagged = machines.agent(machines.launch("azure-no-tag", tags={})).join(world.token())
    assert "PlatformTagsNotAllowed" in untagged.stderr
    ending = machines.launch("azure-ended")
    ending.provisioning_state = "Deleting"
    assert "PlatformInstanceNotRunning" in machines.agent(ending).join(world.token()).stderr
    anew = machines.launch("azure-anew")
    agent = machines.agent(anew)
    assert agent.join(world.token()).returncode == 0
    anew.vm_id = "02aab8a4-74ef-476e-8182-f6d2ba4166a6"
    again = agent.join(world.token(), "--renew")
    assert "PlatformInstanceMismatch" in again.stderr


@pytest.mark.usefixtures("controller")
def test_a_metadata_service_that_is_not_there_is_told_in_one_line(world: World) -> None:
    absent = world.agent("nowhere", "azure", metadataEndpoint="http://127.0.0.1:1").join(
        world.token(), "--timeout", "5"
    )
    assert absent.returncode == 1
    assert "cannot be reached" in absent.stderr
    assert len([line for line in absent.stderr.strip().splitlines() if "waiting until" not in line]) == 1
