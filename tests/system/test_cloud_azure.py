"""Virtual machines of Azure join, renew and serve; Azure throttles, fails and hangs; many come at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure_fleet import AzureFleet
from cryptography import x509
from world import Controller, World

from clouds.azure.cloud import SandboxAzure
from nodeattest_sandbox.apiserver.jsonvalue import text_at


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
