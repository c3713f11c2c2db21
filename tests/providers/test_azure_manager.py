"""Asking Azure's Resource Manager over real TLS: few calls, within bounds, and a refusal or a failure in words."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from azure_world import Calls, document_for, facts_for, request_of, signer_for_cloud, verdict, with_document

from clouds.azure.cloud import SandboxAzure
from clouds.azure.state import SandboxMachine, Switches
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.azure.api.machines import Machine, Machines
from nodeattest_providers.azure.api.resource_manager import ResourceManager
from nodeattest_providers.azure.api.tokens import Tokens
from nodeattest_providers.azure.config import parse_platform
from nodeattest_providers.azure.provider_id import parse_provider_id
from nodeattest_providers.azure.verifier import AzureSigner
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import CallOutcome


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxAzure]:
    with SandboxAzure(tmp_path_factory.mktemp("azure")) as cloud:
        yield cloud


@pytest.fixture
def cloud(running: SandboxAzure) -> SandboxAzure:
    running.state.switches = Switches()
    running.state.machines.clear()
    running.state.calls.clear()
    return running


@pytest.fixture
def machine(cloud: SandboxAzure) -> SandboxMachine:
    return cloud.launch("vm-0")


@pytest_asyncio.fixture
async def manager(cloud: SandboxAzure) -> AsyncIterator[ResourceManager]:
    made = manager_for(cloud, Calls())
    yield made
    await made.aclose()


def manager_for(
    cloud: SandboxAzure,
    calls: Calls,
    clock: Callable[[], float] = time.monotonic,
    time_limit: float = 60.0,
    **changes: JsonValue,
) -> ResourceManager:
    settings = dict[str, JsonValue](cloud.configuration) | changes  # type: ignore[arg-type]
    configuration = parse_platform(settings)
    tokens = Tokens(configuration, observe=calls)
    return ResourceManager(configuration, tokens, observe=calls, monotonic=clock, time_limit=time_limit)


async def find(machines: Machines, machine: SandboxMachine) -> Machine | None:
    return await machines.find(parse_provider_id(machine.provider_id), vm_id=machine.vm_id)


def lists(cloud: SandboxAzure) -> list[str]:
    """The lists that were asked for."""
    return [call for call in cloud.state.calls if "/virtualMachines?" in call]


FAULTS: dict[str, tuple[dict[str, object], CallOutcome, str]] = {
    "down": ({"down": True}, CallOutcome.FAILED, "status 503"),
    "throttled": ({"throttled": 17}, CallOutcome.THROTTLED, "throttled"),
    "forbidden": ({"forbidden": True}, CallOutcome.REFUSED, "status 403"),
    "redirecting": ({"redirect": "https://127.0.0.1:1/"}, CallOutcome.FAILED, "status 302"),
    "endless": ({"huge": True}, CallOutcome.FAILED, "no usable answer"),
}


@pytest.mark.parametrize("what", FAULTS)
async def test_an_azure_that_fails_is_waited_for_and_its_failure_is_counted(
    cloud: SandboxAzure, machine: SandboxMachine, what: str
) -> None:
    switches, outcome, said = FAULTS[what]
    calls = Calls()
    signer = signer_for_cloud(cloud, calls)
    request = request_of(machine)
    request = with_document(request, document_for(request, machine, cloud.signing))
    cloud.state.switches = Switches(**switches)  # type: ignore[arg-type]
    refused = await verdict(signer, request, facts_for(machine))
    assert isinstance(refused, Unavailable)
    assert refused.reason is Reason.PLATFORM_UNAVAILABLE
    assert said in refused.detail
    assert refused.checks
    assert calls.seen == [("authority", CallOutcome.OK), ("machines", outcome)]
    if what == "throttled":
        assert refused.retry_after == 17
    await signer.aclose()


async def test_a_throttled_azure_is_not_asked_before_the_time_that_it_named(
    cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    clock = Clock()
    manager = manager_for(cloud, Calls(), clock)
    machines = Machines(manager, monotonic=clock)
    cloud.state.switches = Switches(throttled=60)
    with pytest.raises(Unavailable):
        await find(machines, machine)
    cloud.state.switches = Switches()
    clock.now += 59
    with pytest.raises(Unavailable) as again:
        await find(machines, machine)
    assert again.value.retry_after == pytest.approx(1)
    assert len(lists(cloud)) == 1
    clock.now += 2
    assert await find(machines, machine)
    await manager.aclose()


async def test_a_next_page_elsewhere_is_not_asked(
    cloud: SandboxAzure, machine: SandboxMachine, manager: ResourceManager
) -> None:
    cloud.launch("vm-1")
    cloud.state.switches = Switches(page=1, elsewhere=f"{cloud.url}.contoso.com")
    with pytest.raises(Unavailable) as refused:
        await find(Machines(manager), machine)
    assert "next page elsewhere" in refused.value.detail


async def test_pages_have_an_end(cloud: SandboxAzure, machine: SandboxMachine, manager: ResourceManager) -> None:
    cloud.state.machines += [dataclasses.replace(machine, name=f"vm-{number}") for number in range(1, 102)]
    cloud.state.switches = Switches(page=1)
    with pytest.raises(Unavailable) as refused:
        await find(Machines(manager), machine)
    assert "more than 100 pages" in refused.value.detail


async def test_a_group_that_azure_does_not_have_is_empty(cloud: SandboxAzure, manager: ResourceManager) -> None:
    nowhere = SandboxMachine(
        subscription=cloud.subscription, group="nowhere", name="vm", computer_name="vm", address="10.0.0.1"
    )
    assert await find(Machines(manager), nowhere) is None


async def test_the_identity_of_the_controllers_own_machine_serves(
    cloud: SandboxAzure, machine: SandboxMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = cloud.launch("controller")
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", own.metadata)  # where azure-identity looks for it
    calls = Calls()
    manager = manager_for(cloud, calls, credential={"managedIdentity": {}})
    assert await find(Machines(manager), machine)
    assert calls.seen == [("authority", CallOutcome.OK), ("machines", CallOutcome.OK)]
    assert not [call for call in cloud.state.calls if "oauth2" in call]
    await manager.aclose()


async def test_a_server_of_another_authority_is_not_believed(
    cloud: SandboxAzure, machine: SandboxMachine, tmp_path: Path
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(cloud.trust_bundle.read_bytes())
    calls = Calls()
    signer: AzureSigner = signer_for_cloud(cloud, calls, caBundle=str(bundle))
    request = request_of(machine)
    request = with_document(request, document_for(request, machine, cloud.signing))
    assert isinstance(await verdict(signer, request, facts_for(machine)), Unavailable)
    assert calls.seen == [("authority", CallOutcome.FAILED)]
    assert cloud.state.calls == []
    await signer.aclose()


async def test_answers_of_any_shape_are_no_machines() -> None:
    class Odd:
        async def list(self, service: str, path: str, query: str) -> list[JsonObject]:
            assert (service, query) == ("machines", "api-version=2024-07-01")
            assert path.endswith("/resourceGroups/g/providers/Microsoft.Compute/virtualMachines")
            return [{}, {"id": 7}, {"id": "a/b/vm", "properties": [], "tags": "x"}, {"id": "vm", "tags": {"a": 1}}]

    name = parse_provider_id(
        "azure:///subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/g/providers/Microsoft.Compute"
        "/virtualMachines/vm"
    )
    found = await Machines(Odd()).find(name)
    assert found is not None
    assert (found.vm_id, found.provisioning_state, found.tags) == ("", "", {"a": "1"})
