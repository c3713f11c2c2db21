"""Asking the Compute API: many questions in few calls, nobody refused by an old answer, every failure a wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import replace

import pytest
from gcp_world import ACCOUNT, NAME, PROJECT, ZONE, Calls, cloud_in, instance_of, rsa_tpm
from tpm_world import SoftTpm

from clouds.gcp.cloud import CloudSwitches, GoogleCloud
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.gcp.api.client import Api
from nodeattest_providers.gcp.api.compute import Compute
from nodeattest_providers.gcp.api.instance import ComputeInstance
from nodeattest_providers.gcp.config import GcpPlatform, parse_platform
from nodeattest_providers.gcp.provider_id import InstanceRef
from nodeattest_providers.platform import CallOutcome

OTHER = "other-project"
PLACE = InstanceRef(PROJECT, ZONE, NAME)


@pytest.fixture(scope="module")
def tpm() -> SoftTpm:
    return rsa_tpm()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[GoogleCloud]:
    with cloud_in(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def settings(running: GoogleCloud) -> GcpPlatform:
    key = running.account(ACCOUNT, project=PROJECT, reads=(PROJECT, OTHER))
    return parse_platform(
        {
            "endpoints": {"compute": running.endpoint},
            "caBundle": str(running.ca_file),
            "credentialsFile": str(key),
        }
    )


@pytest.fixture
def cloud(running: GoogleCloud, tpm: SoftTpm) -> Generator[GoogleCloud]:
    running.instances = [instance_of(tpm)]
    running.calls.clear()
    yield running
    running.switches = CloudSwitches()


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def compute(settings: GcpPlatform, calls: Calls) -> AsyncGenerator[Compute]:
    made = Compute(Api(settings, calls))
    yield made
    await made.aclose()


def fleet(cloud: GoogleCloud, count: int) -> list[InstanceRef]:
    first = cloud.instances[0]
    cloud.instances = [replace(first, name=f"node-{number}", number=str(number)) for number in range(count)]
    return [InstanceRef(PROJECT, ZONE, f"node-{number}") for number in range(count)]


async def test_sixty_machines_at_once_are_one_call(cloud: GoogleCloud, compute: Compute) -> None:
    places = fleet(cloud, 60)
    found = await asyncio.gather(*map(compute.instance, places))
    assert [instance and instance.place for instance in found] == places
    assert cloud.calls == [f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances 60"]


async def test_a_list_of_several_pages_is_read_to_its_end(cloud: GoogleCloud, settings: GcpPlatform) -> None:
    places = fleet(cloud, 5)

    class SmallPages:
        def __init__(self) -> None:
            self.api = Api(settings, Calls())
            self.aclose = self.api.aclose

        async def get(self, path: str, parameters: Mapping[str, str]) -> bytes | None:
            return await self.api.get(path, {**parameters, "maxResults": "2"})

    compute = Compute(SmallPages())
    try:
        assert all(await asyncio.gather(*map(compute.instance, places)))
    finally:
        await compute.aclose()
    assert len(cloud.calls) == 3


async def running_instance(compute: Compute) -> ComputeInstance:
    found = await compute.instance(PLACE)
    assert found is not None
    return found


async def test_keys_that_are_not_there_yet_are_waited_for(cloud: GoogleCloud, compute: Compute, tpm: SoftTpm) -> None:
    cloud.instances[0].keys = {}
    instance = await running_instance(compute)
    with pytest.raises(Unavailable):
        await compute.endorsement_keys(instance)
    cloud.instances[0].keys = instance_of(tpm).keys
    assert await compute.endorsement_keys(instance) == {tpm.fingerprint}


async def test_the_instances_metadata_is_never_sent_to_us(cloud: GoogleCloud, settings: GcpPlatform) -> None:
    seen: list[bytes] = []

    class Listening:
        def __init__(self) -> None:
            self.api = Api(settings, Calls())
            self.aclose = self.api.aclose

        async def get(self, path: str, parameters: Mapping[str, str]) -> bytes | None:
            data = await self.api.get(path, parameters)
            seen.append(data or b"")
            return data

    assert "bootstrap token" in cloud.instances[0].user_data
    compute = Compute(Listening())
    try:
        assert await compute.instance(PLACE)
    finally:
        await compute.aclose()
    assert seen
    assert all(b"bootstrap" not in data and b"metadata" not in data for data in seen)


# Failures


@pytest.mark.parametrize(
    ("switch", "outcome"),
    [
        ("down", CallOutcome.UNREACHABLE),
        ("failing", CallOutcome.FAILED),
        ("throttled", CallOutcome.THROTTLED),
        ("garbled", CallOutcome.FAILED),
    ],
)
async def test_a_project_that_cannot_answer_waits_and_no_other_does(
    cloud: GoogleCloud, compute: Compute, calls: Calls, switch: str, outcome: CallOutcome
) -> None:
    cloud.add(replace(cloud.instances[0], project=OTHER))
    getattr(cloud.switches, switch).add(PROJECT)
    asked = asyncio.gather(
        compute.instance(PLACE), compute.instance(InstanceRef(OTHER, ZONE, NAME)), return_exceptions=True
    )
    failed, found = await asked
    assert isinstance(failed, Unavailable)
    assert failed.reason is Reason.PLATFORM_UNAVAILABLE
    assert isinstance(found, ComputeInstance)
    assert ("compute", outcome) in calls.seen
    getattr(cloud.switches, switch).clear()
    assert await compute.instance(PLACE) is not None


async def test_a_project_that_the_controller_may_not_read_waits_with_the_remedy(
    cloud: GoogleCloud, compute: Compute, calls: Calls
) -> None:
    with pytest.raises(Unavailable) as caught:
        await compute.instance(InstanceRef("not-readable", ZONE, NAME))
    assert "compute.instances.getShieldedInstanceIdentity" in caught.value.remedy
    assert calls.seen[-1] == ("compute", CallOutcome.REFUSED)
    assert cloud.calls


async def test_a_token_that_the_api_refuses_is_replaced_once(
    cloud: GoogleCloud, compute: Compute, calls: Calls
) -> None:
    assert await compute.instance(PLACE)
    cloud.tokens.revoke_all()
    assert await compute.instance(InstanceRef(PROJECT, ZONE, "node-9")) is None
    assert [service for service, _ in calls.seen] == ["oauth", "compute", "compute", "oauth", "compute"]
