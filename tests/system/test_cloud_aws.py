"""EC2 instances join, renew and serve; AWS throttles, fails and hangs; clocks are wrong; the controller is killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aws_fleet import AwsFleet, authorized_fleet, platform_calls
from cryptography import x509
from world import Controller, World

from clouds.aws.cloud import SandboxAws
from nodeattest_sandbox.apiserver.jsonvalue import text_at


@pytest.fixture(scope="module")
def machines(world: World, aws: SandboxAws) -> Iterator[AwsFleet]:
    with authorized_fleet(world, aws, "challenge") as made:
        yield made


@pytest.fixture(scope="module")
def controller(machines: AwsFleet) -> Iterator[Controller]:
    with machines.world.controller(*machines.flags("aws.json"), log="aws.log") as running:
        machines.world.await_service(running)
        yield running


def test_an_instance_joins_renews_and_serves_at_its_live_address(
    world: World, machines: AwsFleet, controller: Controller
) -> None:
    instance = machines.launch("aws-whole", addresses=[("InternalIP", "10.99.99.99")])
    agent = machines.agent(instance)
    joined = agent.join(world.token(), "--serving-ip-address", instance.private_ip)
    assert joined.returncode == 0, joined.stderr
    assert text_at(world.ledger("aws-whole"), "spec", "providerID") == instance.provider_id
    serving = x509.load_pem_x509_certificate((agent.directory / "cache" / "serving.pem").read_bytes())
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == [instance.private_ip]
    first = (agent.directory / "cache" / "credential").read_bytes()
    renewed = agent.join(world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr
    assert (agent.directory / "cache" / "credential").read_bytes() != first
    by_itself = [
        one for one in world.requests_of(instance.private_dns) if "system:node:" in text_at(one, "spec", "username")
    ]
    assert len(by_itself) >= 2
    assert platform_calls(controller)["sts", "ok"] >= 3


@pytest.mark.usefixtures("controller")
def test_an_instance_without_role_tag_or_life_does_not_join(world: World, machines: AwsFleet) -> None:
    bare = machines.agent(machines.launch("aws-no-role", role=None)).join(world.token())
    assert bare.returncode == 1
    assert "instance profile" in bare.stderr
    untagged = machines.agent(machines.launch("aws-no-tag", tags={})).join(world.token())
    assert "PlatformTagsNotAllowed" in untagged.stderr
    ended = machines.launch("aws-ended")
    machines.cloud.terminate(ended)
    assert "PlatformInstanceNotRunning" in machines.agent(ended).join(world.token()).stderr
